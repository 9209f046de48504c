"""What an adapter file tells, and what it must not tell."""

import json

import pytest
import torch

from tests.fixtures.tables import table
from trainer_core.adapter_files.metadata import (
    SETTINGS_KEY,
    RunInfo,
    adapter_metadata,
    shareable_settings,
)
from trainer_core.config import RunConfig
from trainer_core.types import AdapterState, LayerState

SECRET = "SECRET"


def make_state(ranks=(4, 4)):
    layers = {
        f"layer{i}": LayerState(
            {"lora_down": torch.ones(rank, 8), "lora_up": torch.ones(8, rank)}, 2.0, rank
        )
        for i, rank in enumerate(ranks)
    }
    return AdapterState("lora", layers, {"kind": "lora", "rank": 4})


SETTINGS = table(__file__, "private_settings")


def run_settings():
    config = RunConfig.model_validate(SETTINGS)
    return config.model_dump(mode="json")


# Where a workflow keeps what is private: values of widgets, notes, titles, and files of models.
WORKFLOW = {
    "workflow": json.dumps(
        {
            "nodes": [
                {"id": 1, "type": "Note", "widgets_values": [f"for {SECRET}"]},
                {"id": 2, "title": SECRET, "widgets_values": [f"C:\\Users\\{SECRET}\\a.png"]},
            ],
            "extra": {"info": {"author": SECRET}},
        }
    ),
    "prompt": json.dumps({"1": {"class_type": "CLIPTextEncode", "inputs": {"text": SECRET}}}),
}


def facts(**changes):
    values = {
        "family": "qwen_image",
        "step": 50,
        "settings": run_settings(),
        "hashes": {"base": "0f" * 16, "dataset": f"/home/{SECRET}", f"/{SECRET}/x": "0f" * 16},
        "versions": {"torch": "2.13.0+cpu", "host": SECRET},
        "samples": 16,
        "date": "2026-11-21T10:00:00Z",
        "workflow": WORKFLOW,
    }
    return RunInfo(**{**values, **changes})


def test_shareable_tells_nothing_of_the_author():
    metadata = adapter_metadata(make_state(), facts(), "shareable")
    assert SECRET not in json.dumps(metadata)
    assert not {"workflow", "prompt"} & metadata.keys()
    assert "/" not in metadata["modelspec.title"]
    # When somebody works tells something of where they live.
    assert metadata["modelspec.date"] == "2026-11-21"
    assert "10:00" not in json.dumps(metadata)
    own = json.loads(metadata[SETTINGS_KEY])
    assert own["hashes"] == {"base": "0f" * 16}
    assert own["versions"] == {"torch": "2.13.0+cpu"}
    assert own["settings"]["training"]["steps"] == 77
    assert own["settings"]["dataset"]["resolution"] == 512


def test_every_string_setting_of_a_run_file_is_either_a_choice_or_left_out():
    """A new free-text setting must not slip into shareable files through a whole section."""
    kept = shareable_settings(RunConfig().model_dump(mode="json"))
    schema = RunConfig.model_json_schema()
    free = []
    for section, value in kept.items():
        found = schema["properties"][section]
        reference = found.get("$ref") or next(
            (part["$ref"] for part in found.get("allOf", []) if "$ref" in part), None
        )
        if reference and isinstance(value, dict):
            free += free_text(schema, reference, value, section)
    # Layer patterns are free text by nature; they name layers of the base.
    assert set(free) <= {
        "adapter.targets",
        "adapter.include",
        "adapter.exclude",
        "adapter.rank_pattern",
        "adapter.alpha_pattern",
        "training.optimizer.rate_pattern",
        "training.optimizer.decay_pattern",
    }
    assert "adapter.targets" in free


def free_text(schema, reference, values, path):
    found = []
    properties = schema["$defs"][reference.rpartition("/")[2]]["properties"]
    for name in values:
        entry = properties[name]
        if "$ref" in entry:
            found += free_text(schema, entry["$ref"], values[name], f"{path}.{name}")
            continue
        text = json.dumps(entry)
        takes_string = '"type": "string"' in text or '"type": "object"' in text
        if takes_string and '"enum"' not in text and '"const"' not in text:
            found.append(f"{path}.{name}")
    return found


@pytest.mark.parametrize("level", ["full", "shareable"])
def test_every_value_is_a_string_and_what_the_model_spec_demands_is_there(level):
    metadata = adapter_metadata(make_state(), facts(), level)
    assert metadata
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items())
    bare = adapter_metadata(make_state(), RunInfo("flux", 1), level)
    assert "None" not in bare.values()
    demanded = {"sai_model_spec", "architecture", "implementation", "title"}
    assert {f"modelspec.{name}" for name in demanded} <= bare.keys()
    assert bare["modelspec.architecture"] == "flux/lora"
    assert adapter_metadata(make_state(), facts(), "none") == {}


def test_the_keys_that_other_tools_read():
    names = {"architecture": "Qwen-Image-Edit", "base_version": "qwen_image_edit"}
    metadata = adapter_metadata(make_state(), facts(precision="bf16", **names), "shareable")
    assert metadata["ss_network_module"] == "networks.lora"
    assert metadata["ss_network_dim"] == "4"
    assert metadata["ss_network_alpha"] == "2.0"
    assert metadata["ss_steps"] == "50"
    assert metadata["ss_max_train_steps"] == "77"
    assert metadata["ss_seed"] == "11"
    assert metadata["ss_num_train_images"] == "16"
    assert metadata["ss_resolution"] == "(512, 512)"
    assert metadata["ss_mixed_precision"] == "bf16"
    assert metadata["ss_base_model_version"] == "qwen_image_edit"
    assert metadata["modelspec.architecture"] == "Qwen-Image-Edit/lora"
    # As SwarmUI parses it: it fails on anything but two whole numbers.
    width, height = metadata["modelspec.resolution"].split("x")
    assert (int(width), int(height)) == (512, 512)
