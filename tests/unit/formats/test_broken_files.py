"""Adapter files that are broken or foreign are refused by key, and a pickle is never opened."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.fixtures.adapter_states import KEY_MAP, STATES
from trainer_core.errors import AdapterFileError
from trainer_core.formats import inspect_adapter, read_adapter, write_adapter

GOOD = {
    "diffusion_model.head.lora_down.weight": torch.ones(2, 12),
    "diffusion_model.head.lora_up.weight": torch.ones(9, 2),
    "diffusion_model.head.alpha": torch.tensor(2.0),
}


LOKR = {"diffusion_model.head.lokr_w1": torch.ones(3, 3)}


BROKEN = {
    "unknown suffix": ({**GOOD, "diffusion_model.head.bias": torch.ones(9)}, "unknown key .*bias"),
    "unknown prefix": ({"unet.head.lora_up.weight": torch.ones(9, 2)}, "unknown key 'unet.head"),
    "no name": ({"diffusion_model..lora_up.weight": torch.ones(9, 2)}, "unknown key|missing"),
    "missing half": ({k: v for k, v in GOOD.items() if "up" not in k}, "head has only lora_down"),
    "missing lokr part": (
        {**LOKR, "diffusion_model.head.lokr_w2_a": torch.ones(3, 1)},
        "head has only lokr_w1, lokr_w2_a",
    ),
    "too many lokr parts": (
        {
            **LOKR,
            "diffusion_model.head.lokr_w2": torch.ones(3, 4),
            "diffusion_model.head.lokr_w2_a": torch.ones(3, 1),
            "diffusion_model.head.lokr_w2_b": torch.ones(1, 4),
        },
        "head has only",
    ),
    "alpha alone": ({**GOOD, "diffusion_model.layers.0.final.alpha": torch.tensor(1.0)}, "final"),
    "alpha of two": ({**GOOD, "diffusion_model.head.alpha": torch.ones(2)}, "alpha has 2 values"),
    "alpha nan": ({**GOOD, "diffusion_model.head.alpha": torch.tensor(float("nan"))}, "alpha is"),
    "mixed kinds": ({**GOOD, **LOKR}, "mixes spellings or kinds"),
    "mixed spellings": (
        {
            **GOOD,
            "transformer.blocks.0.out.lora_A.weight": torch.ones(2, 20),
            "transformer.blocks.0.out.lora_B.weight": torch.ones(12, 2),
        },
        "mixes spellings or kinds",
    ),
    "foreign layer": (
        {k.replace("head", "elsewhere"): v for k, v in GOOD.items()},
        "'diffusion_model.elsewhere' is no layer",
    ),
    "same layer twice": (
        {**GOOD, **{k.replace("diffusion_model", "transformer"): v + 1 for k, v in GOOD.items()}},
        "both mean the layer 'head'",
    ),
    "ranks differ": (
        {**GOOD, "diffusion_model.head.lora_up.weight": torch.ones(9, 3)},
        "do not fit",
    ),
    "vector": ({**GOOD, "diffusion_model.head.lora_up.weight": torch.ones(9)}, "matrix"),
    "empty matrix": ({**GOOD, "diffusion_model.head.lora_up.weight": torch.ones(9, 0)}, "matrix"),
    "integers": (
        {**GOOD, "diffusion_model.head.lora_up.weight": torch.ones(9, 2, dtype=torch.int32)},
        "int32",
    ),
    "nan": (
        {**GOOD, "diffusion_model.head.lora_up.weight": torch.full((9, 2), float("nan"))},
        "lora_up.weight holds a value that is not finite",
    ),
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


def test_files_that_are_no_safetensors_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_adapter(path, STATES["lora"], "comfyui", KEY_MAP, {})
    whole = path.read_bytes()
    contents = {
        "empty": (b"", "empty"),
        "text": (b"hello, this is not a tensor file", "no whole safetensors"),
        "short": (whole[:5], "no whole safetensors"),
        "header only": (whole[:40], "no whole safetensors"),
        "truncated": (whole[:-7], "no whole safetensors"),
        "longer": (whole + b"1234", "no whole safetensors"),
        "huge header": (struct.pack("<Q", 2**60) + whole[8:], "no whole safetensors"),
        "bad json": (struct.pack("<Q", 4) + b"{{{{", "no whole safetensors"),
    }
    for content, message in contents.values():
        path.write_bytes(content)
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
    assert not marker.exists()


def test_a_file_that_is_not_there_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(AdapterFileError, match="cannot be read"):
            read_adapter(path, KEY_MAP)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_raises_only_our_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "a.safetensors"
    write_adapter(path, STATES["lokr"], "comfyui", KEY_MAP, {"note": "x"})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Most damage goes to the header, where it can change meaning.
        end = data.draw(st.sampled_from([12, 400, len(content)]))
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        read_adapter(path, KEY_MAP)
        inspect_adapter(path)
    except AdapterFileError:
        pass
