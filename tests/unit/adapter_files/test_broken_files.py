"""Adapter files that are broken or foreign are refused by key, and a pickle is never opened."""

import json
import os
import pickle
import struct

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.adapter_states import KEY_MAP, STATES
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.errors import AdapterFileError

HEAD = "diffusion_model.head"
UP, DOWN, ALPHA = f"{HEAD}.lora_up.weight", f"{HEAD}.lora_down.weight", f"{HEAD}.alpha"
GOOD = {DOWN: torch.ones(2, 12), UP: torch.ones(9, 2), ALPHA: torch.tensor(2.0)}
LOKR = {f"{HEAD}.lokr_w1": torch.ones(3, 3)}
LOW_RANK = {f"{HEAD}.lokr_w2_a": torch.ones(3, 1), f"{HEAD}.lokr_w2_b": torch.ones(1, 4)}
OTHER = {
    "transformer.blocks.0.out.lora_A.weight": torch.ones(2, 20),
    "transformer.blocks.0.out.lora_B.weight": torch.ones(12, 2),
}
ELSEWHERE = {key.replace("head", "elsewhere"): each for key, each in GOOD.items()}
AGAIN = {key.replace("diffusion_model", "transformer"): each + 1 for key, each in GOOD.items()}
NAN = torch.tensor(float("nan"))
BROKEN = {
    "unknown suffix": ({**GOOD, f"{HEAD}.bias": torch.ones(9)}, "whole bias"),
    "unknown prefix": ({"vae.head.lora_up.weight": torch.ones(9, 2)}, "holds no adapter .*vae"),
    "no name": ({"diffusion_model..lora_up.weight": torch.ones(9, 2)}, "unknown key|missing"),
    "missing half": ({DOWN: GOOD[DOWN], ALPHA: GOOD[ALPHA]}, "head has only lora_down"),
    "missing lokr part": (
        {**LOKR, f"{HEAD}.lokr_w2_a": torch.ones(3, 1)},
        "head has only lokr_w1, lokr_w2_a",
    ),
    "too many lokr parts": (
        {**LOKR, **LOW_RANK, f"{HEAD}.lokr_w2": torch.ones(3, 4)},
        "head has only",
    ),
    "alpha alone": ({**GOOD, "diffusion_model.layers.0.final.alpha": torch.tensor(1.0)}, "final"),
    "alpha of two": ({**GOOD, ALPHA: torch.ones(2)}, "alpha has 2 values"),
    "alpha nan": ({**GOOD, ALPHA: NAN}, "alpha is"),
    "mixed kinds": ({**GOOD, **LOKR}, "mixes spellings or kinds"),
    "mixed spellings": ({**GOOD, **OTHER}, "mixes spellings or kinds"),
    "foreign layer": (ELSEWHERE, "'diffusion_model.elsewhere' is not a layer"),
    "same layer twice": ({**GOOD, **AGAIN}, "both mean the layer 'head'"),
    "ranks differ": ({**GOOD, UP: torch.ones(9, 3)}, "do not fit"),
    "vector": ({**GOOD, UP: torch.ones(9)}, "matrix"),
    "empty matrix": ({**GOOD, UP: torch.ones(9, 0)}, "matrix"),
    "integers": ({**GOOD, UP: torch.ones(9, 2, dtype=torch.int32)}, "int32"),
    "nan": ({**GOOD, UP: NAN.expand(9, 2).clone()}, "lora_up.weight holds a value that is not fin"),
    "nothing": ({}, "holds no adapter"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_by_key(case, tmp_path):
    tensors, message = BROKEN[case]
    path = tmp_path / "broken.safetensors"
    save_file(tensors, path)
    with pytest.raises(AdapterFileError, match=message) as caught:
        read_adapter(path, KEY_MAP)
    assert "broken.safetensors" in caught.value.found


def test_the_good_file_of_these_cases_is_read(tmp_path):
    save_file(GOOD, tmp_path / "good.safetensors")
    assert set(read_adapter(tmp_path / "good.safetensors", KEY_MAP).layers) == {"head"}


def file_of(header, data=b"", length=None):
    """A file with a header that no library would write."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


A, B = UP, DOWN
TEXT = json.dumps({A: entry(0, 8, [2, 1])})[1:-1]
HEADERS = {
    "overlap": (file_of({A: entry(0, 8, [2]), B: entry(4, 12, [2])}, bytes(12)), "overlaps"),
    "gap": (file_of({A: entry(0, 8, [2]), B: entry(12, 20, [2])}, bytes(20)), "gap before"),
    "same place": (file_of({A: entry(0, 8, [2]), B: entry(0, 8, [2])}, bytes(8)), "overlaps"),
    "beyond the end": (file_of({A: entry(0, 80, [20])}, bytes(8)), "end at byte"),
    "backwards": (file_of({A: entry(8, 0, [2])}, bytes(8)), "does not fit its shape"),
    "too small": (file_of({A: entry(0, 4, [2])}, bytes(4)), "does not fit its shape"),
    "negative": (file_of({A: entry(0, 8, [-2])}, bytes(8)), "not a list of sizes"),
    "fraction": (file_of({A: entry(0, 8, [2.0])}, bytes(8)), "not a list of sizes"),
    "truth": (file_of({A: entry(0, 4, [True])}, bytes(4)), "not a list of sizes"),
    "enormous": (file_of({A: entry(0, 8, [2**62, 2**62])}, bytes(8)), "does not fit its shape"),
    "many axes": (file_of({A: entry(0, 4, [1] * 99)}, bytes(4)), "not a list of sizes"),
    "no shape": (file_of({A: {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)), "not one of a"),
    "no tensor": (file_of({A: 5}), "not one of a tensor"),
    "format": (file_of({A: entry(0, 8, [2], "F77")}, bytes(8)), "number format 'F77'"),
    "format list": (file_of({A: entry(0, 8, [2], ["F32"])}, bytes(8)), "number format"),
    "twice": (file_of(f"{{{TEXT}, {TEXT}}}".encode(), bytes(8)), "comes twice"),
    "list": (file_of([1, 2]), "not an object"),
    "metadata": (file_of({"__metadata__": {"a": 1}}), "not an object of strings"),
    "metadata list": (file_of({"__metadata__": []}), "not an object of strings"),
    "nested": (file_of(b"[" * 200_000), "nested too deeply"),
    "no unicode": (file_of(b'{"\xff": 1}'), "not a complete safetensors"),
    "long number": (file_of(b'{"a": ' + b"1" * 9999 + b"}"), "not a complete safetensors"),
    "header longer than the file": (file_of({}, length=10**6), "with a header of 1000000"),
    "scalar factor": (file_of({A: entry(0, 4, [])}, bytes(4)), "floating-point matrix"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_is_not_right_is_refused(case, tmp_path):
    content, message = HEADERS[case]
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    for action in (lambda: read_adapter(path, KEY_MAP), lambda: inspect_adapter(path)):
        with pytest.raises(AdapterFileError, match=message):
            action()


def test_files_that_are_no_safetensors_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_adapter(path, STATES["lora"], "comfyui", KEY_MAP, {})
    whole = path.read_bytes()
    text, huge, bad = b"he\x00llo, no tensor file", struct.pack("<Q", 2**60), b"{{{{"
    spoilt = [text, whole[:5], whole[:40], whole[:-7], whole + b"1234", huge + whole[8:]]
    spoilt.append(struct.pack("<Q", 4) + bad)
    for content in (b"", *spoilt):
        path.write_bytes(content)
        message = "not a complete safetensors" if content else "empty"
        for action in (lambda: read_adapter(path, KEY_MAP), lambda: inspect_adapter(path)):
            with pytest.raises(AdapterFileError, match=message):
                action()


def test_a_pickle_is_never_opened(tmp_path):
    marker = tmp_path / "executed"

    class Attack:
        def __reduce__(self):
            return marker.touch, ()

    for name, arguments in (("a.pt", {}), ("b.pt", {"_use_new_zipfile_serialization": False})):
        path = tmp_path / name
        torch.save({"x": Attack()}, path, **arguments)
        with pytest.raises(AdapterFileError, match="is a pickle"):
            read_adapter(path, KEY_MAP)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        path = tmp_path / "named.safetensors"
        path.write_bytes(pickle.dumps({"x": Attack()}, protocol))
        with pytest.raises(AdapterFileError, match="is a pickle"):
            read_adapter(path, KEY_MAP)
    assert not marker.exists()


def test_a_file_that_is_not_there_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(AdapterFileError, match="cannot be read"):
            read_adapter(path, KEY_MAP)
    with pytest.raises(AdapterFileError, match="null byte"):
        read_adapter(tmp_path / "nul\0.safetensors", KEY_MAP)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(AdapterFileError, match="not an ordinary file"):
        read_adapter(tmp_path / "a.safetensors", KEY_MAP)
    save_file(GOOD, tmp_path / "adapter_model.safetensors")
    os.mkfifo(tmp_path / "adapter_config.json")
    with pytest.raises(AdapterFileError, match="not an ordinary file"):
        read_adapter(tmp_path, KEY_MAP)


@pytest.mark.parametrize("prefix", ["", "pipe.dit.", "token_refiner."])
def test_a_file_that_does_not_say_which_row_is_which_is_refused(prefix, tmp_path):
    """MiniMax-H3 by DiffSynth-Studio, which has two orders of rows under the same names."""
    name = f"{prefix}blocks.0.attn.qkv_proj"
    factors = {"A": torch.ones(2, 64), "B": torch.ones(96, 2)}
    path = tmp_path / "h3.safetensors"
    save_file({f"{name}.lora_{each}.default.weight": x for each, x in factors.items()}, path)
    with pytest.raises(AdapterFileError, match="head by head") as raised:
        read_adapter(path, KEY_MAP)
    assert "a file that ComfyUI loads" in raised.value.remedy
