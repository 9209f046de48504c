"""Tensors in memory are read as a file of them is, and errors are told in the caller's words."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trainer_core.errors import AdapterFileError, StorageError, TrainerError
from trainer_core.tensors.safetensors_reader import HeldTensors, Wording, open_tensors
from trainer_core.weights.header import open_weights

TENSORS = {
    "a": torch.arange(12, dtype=torch.float32).reshape(4, 3),
    "b": torch.randn(2, 2).to(torch.float8_e4m3fn),
    "c": torch.tensor(4.0, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 3),
}


def same(one, other):
    return one.dtype == other.dtype and torch.equal(one.float(), other.float())


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors", {"made": "here"})
    return tmp_path / "x.safetensors"


@pytest.mark.parametrize("held", [False, True])
def test_a_file_and_tensors_in_memory_are_read_alike(path, held):
    with open_tensors(HeldTensors("it", TENSORS, {"made": "here"}) if held else path) as file:
        assert file.metadata == {"made": "here"}
        assert set(file.tensors) == set(TENSORS)
        for name, tensor in file.read_all().items():
            assert same(tensor, TENSORS[name])
            assert file.tensors[name].shape == tensor.shape
            assert file.tensors[name].size == tensor.nbytes
        rows = file.read_rows("a", 1, 3)
    assert torch.equal(rows, TENSORS["a"][1:3])
    rows.zero_()
    assert TENSORS["a"][1].any(), "what is read has memory of its own"


TEXTS = {
    "a git-LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 9\n",
    "a web page": b"\n<!DOCTYPE html><html><title>Sign in</title>",
    "a web page,": b"\xef\xbb\xbf<html lang='de'><title>\xc3\x9cber</title>",
    '{"error": "Unauthorized"}': b'{"error": "Unauthorized"}',
    "Access to model x is restricted": b"Access to model x is restricted.",
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_text_in_place_of_tensors_is_named_with_the_cure(what, tmp_path):
    for name, wording in (("a.safetensors", Wording()), ("b.gguf", None)):
        path = tmp_path / name
        path.write_bytes(TEXTS[what])
        with pytest.raises(TrainerError, match=re.escape(what)) as caught:
            open_tensors(path, wording).__enter__() if wording else open_weights(path)
        assert str(path) in caught.value.found
        if wording is not None:
            cure = "git lfs pull" if "LFS" in what else "Download it again"
            assert cure in caught.value.remedy


def test_what_cannot_be_read_from_memory_is_named():
    odd = {"whole": torch.zeros(2, dtype=torch.complex64)}
    with (
        pytest.raises(AdapterFileError, match=r"the lora: 'whole' is of .* torch\.complex64"),
        open_tensors(HeldTensors("the lora", odd)),
    ):
        pass


@pytest.mark.parametrize("start", [b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"])
def test_errors_are_told_in_the_callers_words(path, start):
    path.write_bytes(start + bytes(60))
    wording = Wording(StorageError, "the cache: ", instead="Encode it again.")
    with (
        pytest.raises(StorageError, match="Encode it again") as raised,
        open_tensors(path, wording),
    ):
        pass
    assert raised.value.found.startswith("the cache: ")
    with pytest.raises(StorageError, match="readable"), open_tensors(Path("none"), wording):
        pass
