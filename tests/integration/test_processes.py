"""Two processes train what one would."""

import pytest
import torch
import yaml
from launches import launch_two
from runs import CancelAfter, metrics, run_config, tensors

from trainer_core.training import SingleProcess, train
from trainer_core.training.encode_dataset import prepare, save_manifest
from trainer_core.training.observer import SilentObserver

LATER = pytest.mark.exhaustive
BEGIN = """
import sys, time
from pathlib import Path
import torch
from trainer_core.config.reading import load_config
from trainer_core.training import AccelerateProcesses, train
processes = AccelerateProcesses(torch.device("cpu"))
"""
TRAIN = """
result = train(load_config(sys.argv[1]), None, processes)
name = f"{processes.index} of {processes.count}"
Path(sys.argv[2], name).write_text(f"{result.status} {result.step}")
"""


def how_they_ended(ends):
    return {path.name: path.read_text() for path in ends.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["adamw", *(pytest.param(each, marks=LATER) for each in ("adamw8bit", "lion"))]
)
def test_two_gloo_processes_train_the_bits_of_one(tmp_path, cache, name):
    """Also of layers that no gradient reaches: no process decays them."""
    training = {"batch_size": 2, "gradient_accumulation_steps": 2, "steps": 5}
    training |= {"checkpoint_every": 3}
    training |= {"optimizer": {"name": name, "learning_rate": 1e-3, "weight_decay": 1.0}}
    training |= {"ema": {"decay": 0.9, "export": "both"}, "max_weight_norm": 0.005}
    # The initialization come from what one process saw; of this rank factors are large enough for
    # 8 bits.
    adapter = {"kind": "lora", "init": "eva", "targets": [".*"], "module_dropout": 0.3}
    adapter |= {"rank": 32} if name == "adamw8bit" else {}
    config = run_config(tmp_path / "two", cache, training=training, adapter=adapter)
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    ends = tmp_path / "ends"
    ends.mkdir()
    done = launch_two(tmp_path, BEGIN + TRAIN, run_file, ends)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert how_they_ended(ends) == {"0 of 2": "done 5", "1 of 2": "done 5"}
    one = train(run_config(tmp_path / "one", cache, training=training, adapter=adapter))
    two = tmp_path / "two" / "run" / "v0"
    assert len(list((tmp_path / "two" / "run").iterdir())) == 1, "each process made a folder"
    for path in one.adapters:
        expected, found = tensors(path), tensors(two / path.name)
        unlike = [key for key in expected if not torch.equal(found[key], expected[key])]
        assert not unlike
    for a, b in zip(metrics(two), metrics(one.folder), strict=True):
        assert a["sigma_mean"] == pytest.approx(b["sigma_mean"], rel=1e-12)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_processes_on_a_finished_cache_resume_the_same_checkpoint(tmp_path, cache):
    training = {"batch_size": 2, "gradient_accumulation_steps": 2, "steps": 6}
    config = run_config(tmp_path, cache, training=training)
    with torch.inference_mode(False):
        prepared = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu")))
    manifest = str(save_manifest(config, prepared))
    finished = {"cache": {"manifest": manifest}, "dataset": {"path": ""}, "resume": "auto"}
    config = run_config(tmp_path, cache, training=training, **finished)
    assert train(config, CancelAfter(3)).status == "cancelled"
    run_file, ends = tmp_path / "run.yaml", tmp_path / "ends"
    ends.mkdir()
    run_file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    program = BEGIN + "time.sleep(10 * processes.index)\n" + TRAIN
    done = launch_two(tmp_path, program, run_file, ends)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert how_they_ended(ends) == {"0 of 2": "done 6", "1 of 2": "done 6"}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["v0"]
    assert [entry["step"] for entry in metrics(tmp_path / "run" / "v0")] == list(range(1, 7))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("first", ["one", "two"])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, cache, first):
    training = {"batch_size": 2, "gradient_accumulation_steps": 2, "steps": 6}
    whole = train(run_config(tmp_path / "whole", cache, training=training))
    folder, ends = tmp_path / "changed", tmp_path / "ends"
    ends.mkdir()
    stops = "from runs import CancelAfter\n" + TRAIN.replace("None", "CancelAfter(3)")

    def in_two(program, **values):
        run_file = tmp_path / "run.yaml"
        config = run_config(folder, cache, training=training, **values)
        run_file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
        done = launch_two(tmp_path, BEGIN + program, run_file, ends)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    if first == "one":
        assert train(run_config(folder, cache, training=training), CancelAfter(3)).step == 3
        in_two(TRAIN, resume="latest")
        assert how_they_ended(ends) == {"0 of 2": "done 6", "1 of 2": "done 6"}
    else:
        in_two(stops)
        assert how_they_ended(ends) == {"0 of 2": "cancelled 3", "1 of 2": "cancelled 3"}
        assert train(run_config(folder, cache, training=training, resume="latest")).step == 6
    (version,) = (folder / "run").iterdir()
    expected, found = tensors(whole.adapters[0]), tensors(version / "run.safetensors")
    for key in expected:
        # The gradients of two are added in another order.
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-6)
    for a, b in zip(metrics(version), metrics(whole.folder), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
