"""Two processes train what one would."""

import os
import subprocess
import sys

import pytest
import torch
import yaml
from runs import metrics, run_config, tensors

from trainer_core.training import train


@pytest.mark.slow
@pytest.mark.parametrize("training", [{"batch_size": 2, "gradient_accumulation_steps": 2}])
def test_two_gloo_processes_train_the_weights_of_one(tmp_path, cache, training):
    training = {**training, "steps": 5, "checkpoint_every": 3}
    config = run_config(tmp_path / "two", cache, training=training)
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]
    command += ["--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", "--main_process_port", "0", "-m", "trainer_core"]
    done = subprocess.run(
        [*command, "train", str(run_file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    one = train(run_config(tmp_path / "one", cache, training=training))
    two = tmp_path / "two" / "run" / "v0"
    assert len(list((tmp_path / "two" / "run").iterdir())) == 1, "each process made a folder"
    expected, found = tensors(one.adapters[0]), tensors(two / "run.safetensors")
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-6)
    for a, b in zip(metrics(two), metrics(one.folder), strict=True):
        assert a["sigma_mean"] == pytest.approx(b["sigma_mean"], rel=1e-12)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
