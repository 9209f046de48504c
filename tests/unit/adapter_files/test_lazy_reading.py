"""An open adapter reads what it is asked for, and nothing stays behind when it is closed."""

import os

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.adapter_states import KEY_MAP, STATES
from trainer_core.adapter_files.read.read_adapter import open_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.errors import AdapterFileError


def spoilt(path, folder, keep=0):
    """The same file with values that are not finite, but for its first bytes of data."""
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little") + keep
    content[begin:] = b"\xff" * (len(content) - begin)
    target = folder / "spoilt.safetensors"
    target.write_bytes(content)
    return target


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a.safetensors"
    write_adapter(path, STATES["lokr"], "diffusers", KEY_MAP, {}, "bf16")
    return path


def test_opening_reads_no_values(written, tmp_path):
    path = spoilt(written, tmp_path)
    with open_adapter(path, KEY_MAP) as adapter:
        state = adapter.state
        assert set(state.layers) == set(STATES["lokr"].layers)
        assert len(state.layers) == 4
        assert "head" in state.layers
        assert "tail" not in state.layers
        for name in state.layers:
            outline = adapter.outline(name)
            assert all(tensor.is_meta for tensor in outline.tensors.values())
            assert {tensor.dtype for tensor in outline.tensors.values()} == {torch.bfloat16}
            with pytest.raises(AdapterFileError, match=r"lokr_w\w+ holds a value that is not fini"):
                state.layers[name]


def test_a_file_that_becomes_shorter_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "diffusion_model.head.lora_down.weight": torch.ones(9, 9000),
        "diffusion_model.head.lora_up.weight": torch.ones(9000, 9),
    }
    save_file(tensors, path)
    with open_adapter(path, KEY_MAP) as adapter:
        os.truncate(path, path.stat().st_size - 4)
        with pytest.raises(AdapterFileError, match="has become shorter"):
            dict(adapter.state.layers)
