"""Files that are rare and legitimate go through, and those that are wrong are refused by name."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer_core.cli import main

BLOCK = "diffusion_model.transformer_blocks.0"
LAYER = f"{BLOCK}.attn.to_q"
DOUBLE = "diffusion_model.double_blocks.0.img_attn"
SIZE = 128
"""Inputs and outputs of the layer in the embedded base."""


def values(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def lora(layer=LAYER, outputs=SIZE, inputs=SIZE):
    return {
        f"{layer}.lora_down.weight": values(4, inputs),
        f"{layer}.lora_up.weight": values(outputs, 4),
    }


LOKR = {
    f"{LAYER}.lokr_w1": values(4, 4),
    f"{LAYER}.lokr_w2_a": values(32, 2),
    f"{LAYER}.lokr_w2_b": values(2, 32),
}


def saved(folder, tensors, **metadata):
    path = folder / "in.safetensors"
    save_file(tensors, path, metadata or None)
    return path


def report_of(capsys, *words):
    code = main([*map(str, words), "--json"])
    found = capsys.readouterr()
    return code, json.loads(found.out.strip().splitlines()[-1]) if found.out else found.err


@pytest.mark.parametrize(
    "tensors",
    [
        {f"{LAYER}.diff_b": values(SIZE)},
        {**lora(), "diffusion_model.img_in.diff_b": values(SIZE)},
        {**lora(), f"{BLOCK}.attn.norm_q.diff": values(32)},
        {**lora(), f"{BLOCK}.attn.norm_q.w_norm": values(32), f"{LAYER}.diff_b": values(SIZE)},
        {
            **lora(f"{DOUBLE}.qkv", 9216, 3072),
            f"{DOUBLE}.norm.query_norm.diff": values(16),
            "diffusion_model.final_layer.adaLN_modulation.1.diff_b": values(32),
        },
    ],
    ids=["a bias alone", "a bias", "a norm", "a norm and a bias", "FLUX"],
)
def test_differences_of_biases_and_norms_are_converted(tensors, capsys, tmp_path):
    path = saved(tmp_path, tensors)
    kept = [key.rpartition(".")[2] for key in tensors if "lora" not in key]
    for layout in ("comfyui", "kohya"):
        target = tmp_path / f"{layout}.safetensors"
        code, report = report_of(capsys, "convert", path, target, "--to", layout)
        assert code == 0, report
        assert {key.rpartition(".")[2] for key in load_file(target)} >= set(kept)


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--prove"], ["convert"]])
@pytest.mark.parametrize("place", ["value", "name", "key"])
def test_half_a_character_in_the_header_is_a_broken_file(place, words, capsys, tmp_path):
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    header = {
        "__metadata__": {"a\ud800" if place == "name" else "a": "\udfff" * (place == "value")},
        f"{LAYER}.diff" + "\ud800" * (place == "key"): entry,
    }
    text = json.dumps(header).encode()
    path = tmp_path / "in.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    verb, *flags = words
    more = [str(tmp_path / "out.safetensors"), "--to", "comfyui"] if verb == "convert" else []
    assert main([verb, str(path), *more, *flags]) == 2
    assert "lone surrogate" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "diffusion_model.nonsense.layer",
        "diffusion_model.transformer_blocks.\u0663.attn.to_q",
        "diffusion_model.transformer_blocks.00.attn.to_q",
        "diffusion_model.transformer_blocks.00.attn.norm_q",
        "lora_unet_transformer_blocks_00_attn_to_k",
    ],
)
@pytest.mark.parametrize("ending", ["diff", "lora"])
def test_a_layer_that_the_family_lacks_is_named(ending, name, capsys, tmp_path):
    tensors = lora(name) if ending == "lora" else {f"{name}.diff": values(8, 8)}
    prefix = "lora_unet_transformer_blocks_0_attn_to_q"
    path = saved(tmp_path, {**lora(prefix if name.startswith("lora") else LAYER), **tensors})
    for more in ([], ["--family", "qwen_image"]):
        words = ["convert", str(path), str(tmp_path / "o.safetensors"), "--to", "comfyui", *more]
        assert main(words) == 2
        assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layer", "outputs", "told"),
    [(LAYER, SIZE + 16, "144 x 128"), (LAYER.replace("0", "99"), SIZE, "transformer_blocks.99")],
)
def test_an_adapter_that_does_not_fit_is_told_with_its_file(layer, outputs, told, capsys, tmp_path):
    path = saved(tmp_path, lora(layer, outputs))
    good = tmp_path / "good.safetensors"
    save_file(lora(), good)
    words = f"base.path=embedded cache.dir={tmp_path}/c preview.width=64 preview.height=64".split()
    for command in (
        ["merge", "embedded", str(good), str(path), str(tmp_path / "merged")],
        [
            "sample",
            f"adapter={path}",
            "prompt=x",
            f"output={tmp_path}/o",
            "preview.steps=1",
            *words,
        ],
    ):
        assert main(command) == 2
        shown = capsys.readouterr().err
        assert str(path) in shown
        assert told in shown or "(144, 4)" in shown


@pytest.mark.parametrize(("alpha", "odd"), [(2.0, False), (-2.0, True), (1e10, True)])
def test_a_scale_that_nobody_means_is_named(alpha, odd, capsys, tmp_path):
    path = saved(tmp_path, {**LOKR, f"{LAYER}.alpha": torch.tensor(alpha)})
    _, report = report_of(capsys, "inspect", path)
    assert any(f"the scale is {alpha / 2:g}" in note for note in report["notes"]) == odd


def glora(inputs=SIZE, old=False):
    sizes = {"a1": (inputs, 4), "a2": (4, inputs), "b1": (SIZE, 4), "b2": (4, SIZE)}
    return {
        f"{LAYER}.{name}.weight": values(*(sizes[name][::-1] if old else sizes[name]))
        for name in sizes
    }


IA3 = {f"{LAYER}.weight": values(SIZE, 1), f"{LAYER}.on_input": torch.tensor(False)}
NOT_HERE = {
    "IA3": (IA3, "NOT FINE", "on_input' (IA3)"),
    "IA3 of PEFT": ({f"base_model.model.{LAYER[16:]}.ia3_l": values(SIZE, 1)}, "NOT FINE", "PEFT"),
    "IA3 beside a LoRA": ({**IA3, **lora(LAYER.replace("to_q", "to_k"))}, "NOT FINE", "(IA3)"),
    "GLoRA": (glora(), "PROVED NOTHING", "(GLoRA)"),
    "GLoRA of before": (glora(old=True), "PROVED NOTHING", "(GLoRA)"),
    "GLoRA of other inputs": (glora(96), "NOT FINE", "a GLoRA of other sizes"),
    "BOFT": (
        {f"{LAYER}.oft_blocks": values(2, 8, 16, 16), f"{LAYER}.alpha": torch.tensor(0.0)},
        "PROVED NOTHING",
        "a BOFT of 2 turns",
    ),
    "a vector of VeRA": (
        {f"base_model.model.{LAYER[16:]}.vera_lambda_b": values(SIZE)},
        "NOT FINE",
        "another method of PEFT",
    ),
}


@pytest.mark.parametrize("what", NOT_HERE)
def test_a_kind_that_is_not_read_is_judged_by_what_comfyui_loads(what, capsys, tmp_path):
    tensors, verdict, told = NOT_HERE[what]
    path = saved(tmp_path, tensors)
    assert main(["inspect", str(path), "--prove", "--base", "embedded"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(verdict)
    assert all(part in shown for part in ("Expected: ", "To do: "))
    _, report = report_of(capsys, "inspect", path, "--prove", "--base", "embedded")
    assert told in f"{report}"
    # Without a base: by the one family whose layers these are, or else three parts and no verdict.
    code = main(["inspect", str(path), "--prove"])
    found = capsys.readouterr()
    sure = what in {"GLoRA", "GLoRA of before", "BOFT", "IA3 beside a LoRA"}
    assert (code, "Base: the embedded base" in found.out) == ((1, True) if sure else (2, False))
    assert "ComfyUI 0.33 has no" not in found.err
    assert all(part in found.out + found.err for part in ("Expected: ", "To do: "))
