"""What a run writes of itself into its adapter files and beside them."""

import json
from datetime import datetime

import pytest
from runs import run_config
from safetensors import safe_open

from trainer_core.adapter_files.metadata import SETTINGS_KEY
from trainer_core.cli import main
from trainer_core.demo.run import dataset_folder
from trainer_core.training import train

WORKFLOW = {"workflow": '{"nodes":[{"widgets_values":["SECRET"]}]}', "prompt": '{"1":{}}'}


def header(path):
    with safe_open(str(path), framework="pt") as file:
        return file.metadata()


@pytest.mark.parametrize("level", ["full", "shareable", "none"])
def test_the_workflow_is_with_the_run_and_in_its_files_only_when_asked_for(
    tmp_path, cache, level, capsys
):
    output = {"metadata": level, "name": "SECRET"}
    config = run_config(
        tmp_path, cache, training={"steps": 1, "checkpoint_every": 1}, output=output
    )
    samples = len(list(dataset_folder("generate").rglob("*.txt")))
    result = train(config, workflow=WORKFLOW)
    for key, text in WORKFLOW.items():
        assert (result.folder / f"{key}.json").read_text() == f"{text}\n"
    for path in (
        *result.adapters,
        result.folder / "checkpoints" / "000001" / "adapter.safetensors",
    ):
        found = header(path)
        assert (WORKFLOW.items() <= found.items()) == (level == "full")
        assert ("SECRET" in json.dumps(found)) == (level == "full")
        assert (str(tmp_path) in json.dumps(found)) == (level == "full")
        if level == "none":
            assert found == {"format": "pt"}
            continue
        assert found["modelspec.architecture"] == "Qwen-Image/lora"
        assert datetime.fromisoformat(found["modelspec.date"]).year >= 2025
        assert (len(found["modelspec.date"]) == len("2025-01-01")) == (level == "shareable")
        assert found["ss_base_model_version"] == "qwen_image"
        assert found["ss_mixed_precision"] == "no"
        assert found["ss_num_train_images"] == str(samples)
        assert found["ss_steps"] == str(json.loads(found[SETTINGS_KEY])["step"]) == "1"
    assert main(["inspect", str(result.adapters[0]), "--verbose"]) == 0
    told = capsys.readouterr().out
    assert ("nodes: 1" in told) == (level == "full")
    assert "widgets_values" not in told
