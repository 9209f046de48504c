"""Safetensors files as they are written here, read by the library."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from trainer_core.errors import StorageError
from trainer_core.tensors.safetensors_writer import Outline, stream_tensors

TENSORS = {
    "b.weight": torch.arange(6, dtype=torch.float32).view(2, 3).t(),
    "a.alpha": torch.tensor(4.0),
    "c": torch.randn(3, 5, dtype=torch.bfloat16),
    "d": torch.ones(7, dtype=torch.float16),
    "e": torch.randn(4).to(torch.float8_e4m3fn),
    "empty": torch.zeros(0, 3),
    "f": torch.tensor([True, False, True]),
}


def outlines(tensors):
    return {name: Outline.of(tensor) for name, tensor in tensors.items()}


def test_the_library_reads_what_was_streamed(tmp_path):
    path = tmp_path / "x.safetensors"
    header = {"format": "pt", "note": 'ä "quoted"'}
    stream_tensors(path, outlines(TENSORS), iter(TENSORS.items()), header)
    read = load_file(path)
    assert set(read) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert torch.equal(read[name].float(), tensor.float())
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata() == header


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": torch.ones(2)},
        {"a": torch.ones(3).half()},
        {"b": torch.ones(3)},
        {},
        {"a": torch.ones(3), "c": torch.ones(1)},
    ],
    ids=["shape", "dtype", "name", "missing", "more"],
)
def test_a_tensor_that_was_not_announced_leaves_no_file(tmp_path, wrong):
    path = tmp_path / "x.safetensors"
    with pytest.raises(StorageError):
        stream_tensors(path, outlines({"a": torch.ones(3)}), iter(wrong.items()))
    assert list(tmp_path.iterdir()) == []
