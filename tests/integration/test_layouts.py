"""A run writes every layout that holds its adapter, and is told at once which does not."""

import pytest
import torch
from runs import run_config

from trainer_core.adapter_files.read.adapter_file import read_adapter
from trainer_core.adapter_files.write.adapter_file import layout_name
from trainer_core.errors import AdapterError
from trainer_core.families.registry import FAMILIES
from trainer_core.training import train

SHORT = {"steps": 2, "checkpoint_every": 1, "schedule": {"name": "constant", "warmup_steps": 0}}
ROWS = {"kind": "lora", "dora": True, "dora_axis": "output"}


def test_lengths_of_rows_are_trained_kept_and_exported(tmp_path, cache):
    layouts = ["diffusers", "peft", "lycoris"]
    config = run_config(tmp_path, cache, adapter=ROWS, training=SHORT, output={"layouts": layouts})
    result = train(config)
    assert [path.name for path in result.adapters] == [layout_name("run", x) for x in layouts]
    names = FAMILIES["qwen_image"].key_map
    kept = result.folder / "checkpoints" / "000002" / "adapter.safetensors"
    states = [read_adapter(path, names) for path in (kept, *result.adapters)]
    for state in states[1:]:
        for name, layer in states[0].layers.items():
            lengths = state.layers[name].tensors["dora_scale"]
            assert torch.equal(lengths, layer.tensors["dora_scale"])


def test_a_layout_that_cannot_hold_them_is_refused_before_training(tmp_path, cache):
    config = run_config(tmp_path, cache, adapter=ROWS, training=SHORT)
    with pytest.raises(AdapterError, match="magnitude of the output axis"):
        train(config)
    assert not list(tmp_path.rglob("run.json"))
