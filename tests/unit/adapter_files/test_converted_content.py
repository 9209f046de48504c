"""What a conversion must not lose or say wrongly: lengths, small values, parts, the header."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.fixtures.adapter_states import make_state
from tests.fixtures.family_states import assert_same, family_state, key_map
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.metadata import LARGEST_IN_HEADER
from trainer_core.adapter_files.read.read_adapter import read_adapter, read_file
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.bases.adapter_family import require_base
from trainer_core.bases.base_weights import open_base
from trainer_core.errors import InputError, PrecisionError
from trainer_core.families.registry import FAMILIES
from trainer_core.types import AdapterState

FLUX, QWEN = key_map("flux"), key_map("qwen_image")
Q = "transformer_blocks.0.attn.to_q"
SINGLE = "single_transformer_blocks.3"


def header(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


@pytest.mark.parametrize("layout", ["comfyui", "lycoris", "diffusers", "peft"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_lengths_are_not_rounded(layout, dtype, tmp_path):
    """What training changes of a length is less than a step of 16 bits at a weight's norm."""
    axis = "output" if layout in ("diffusers", "peft") else "input"
    state = family_state("flux", f"lora {axis}")
    path = tmp_path / ("a" if layout == "peft" else "a.safetensors")
    write_adapter(path, state, layout, FLUX, {}, dtype)
    read = read_adapter(path, FLUX)
    for name, layer in state.layers.items():
        assert torch.equal(read.layers[name].tensors["dora_scale"], layer.tensors["dora_scale"])
    wanted = {"bf16": "bfloat16", "fp16": "float16"}[dtype]
    assert read_file(path).dtypes == (wanted,)
    # Neither are the factors kept as finely as the lengths when the format is kept.
    again = tmp_path / "again.safetensors"
    report = convert(path, again, "lycoris", FLUX)
    assert report.rounding <= (2.0**-8 if axis == "output" else 0.0)
    found = {key.rpartition(".")[2]: tensor.dtype for key, tensor in load_file(again).items()}
    assert found["dora_scale"] == torch.float32
    assert found["weight"] == getattr(torch, wanted)


def test_values_that_a_format_does_not_hold_are_refused(tmp_path):
    state = make_state("lora", sizes={"proj_out": (12, 8)})
    state.layers["proj_out"].tensors["lora_down"].mul_(1e-9)
    state.layers["proj_out"].tensors["lora_up"].mul_(1e3)
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_adapter(source, state, "comfyui", QWEN, {})
    with pytest.raises(PrecisionError, match=r"lora_down\.weight loses 100%") as error:
        convert(source, target, "kohya", QWEN, dtype="fp16")
    assert "--dtype bf16" in error.value.remedy
    assert not target.exists()
    assert convert(source, target, "kohya", QWEN, dtype="bf16").rounding < 0.01
    # Nothing is lost of what is zero by itself.
    state.layers["proj_out"].tensors["lora_down"].zero_()
    write_adapter(tmp_path / "c.safetensors", state, "comfyui", QWEN, {}, "fp16")


@pytest.mark.parametrize("names", [("attn.to_q", "proj_mlp"), ("attn.to_k",), ("proj_mlp",)])
def test_a_fused_lokr_can_be_read_again(names, tmp_path):
    """A part never begins inside a block of the second factor's rows."""
    sizes = {f"{SINGLE}.{n}": (12, 64 if n == "proj_mlp" else 16) for n in names}
    layers = {}
    for seed, (name, size) in enumerate(sizes.items()):
        options = {"seed": seed, "sizes": {name: size}, "full_matrix": True}
        layers |= make_state("lokr", **options).layers
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_adapter(source, AdapterState("lokr", layers), "lycoris", FLUX, {})
    report = convert(source, target, "kohya", FLUX, approximate="lokr")
    found = read_adapter(target, FLUX)
    assert set(found.layers) >= set(layers)
    for name, layer in found.layers.items():
        if name not in layers:
            assert not layer_delta("lokr", layer).any(), name
    deltas = [layer_delta("lokr", each).flatten() for each in layers.values()]
    off = [
        (layer_delta("lokr", found.layers[name]) - layer_delta("lokr", layer)).flatten()
        for name, layer in layers.items()
    ]
    error = float(torch.cat(off).norm() / torch.cat(deltas).norm())
    assert error == pytest.approx(report.errors.get("single_blocks.3.linear1", 0.0), abs=1e-5)
    assert error < 0.95


OWN = {
    "family": "flux",
    "kind": "lora",
    "settings": {"adapter": {"rank": 2, "dora": True}, "seed": 1},
}
HEADER = {
    "adapter_trainer": json.dumps(OWN),
    "ss_network_dim": "2",
    "ss_network_args": '{"dora_wd": "True"}',
    "ss_steps": "7",
    "modelspec.hash_sha256": "0xabc",
    "sshs_model_hash": "abc",
    "sshs_legacy_hash": "abc",
    "workflow": '{"nodes": []}',
    "prompt": "not JSON",
}


def test_a_header_keeps_what_stays_true(tmp_path):
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_adapter(source, family_state("flux", "lora"), "lycoris", FLUX, HEADER)
    convert(source, target, "comfyui", FLUX)
    kept = {"adapter_trainer", "ss_network_dim", "ss_network_args", "ss_steps", "workflow"}
    assert set(header(target)) - {"format"} == kept
    large = {**HEADER, "workflow": json.dumps({"nodes": ["x" * LARGEST_IN_HEADER]})}
    write_adapter(source, family_state("flux", "lora"), "lycoris", FLUX, large)
    report = convert(source, target, "comfyui", FLUX, overwrite=True)
    assert set(header(target)) - {"format"} == kept - {"workflow"}
    assert any("workflow was left out: too large" in note for note in report.notes)


@pytest.mark.parametrize("size", [(100, 77), (128, 77), None])
def test_an_adapter_of_other_sizes_than_the_base_is_refused(size, tmp_path):
    base = open_base("embedded")
    outputs, inputs = base.shape(f"{Q}.weight") or (0, 0)
    path = tmp_path / "a.safetensors"
    write_adapter(path, make_state("lora", sizes={Q: (inputs, outputs)}), "comfyui", QWEN, {})
    require_base(path, base)
    name = Q if size else Q.replace(".0.", ".77.")
    state = make_state("lora", sizes={name: size or (inputs, outputs)})
    write_adapter(path, state, "comfyui", FAMILIES["qwen_image"].layers.key_map, {})
    with pytest.raises(InputError, match="is not in the base" if size is None else "77 x 1"):
        require_base(path, base)


@pytest.mark.parametrize("layout", ["comfyui", "peft"])
def test_a_file_that_came_in_the_meantime_is_not_replaced(layout, tmp_path):
    source = tmp_path / "a.safetensors"
    target = tmp_path / ("b" if layout == "peft" else "b.safetensors")
    state = family_state("qwen_image", "lora")
    write_adapter(source, state, "lycoris", QWEN, {})
    other = family_state("qwen_image", "lora", seed=99)

    def meanwhile(done, count, title):
        if done == count:
            write_adapter(target, other, layout, QWEN, {})

    with pytest.raises(InputError, match="in the meantime"):
        convert(source, target, layout, QWEN, watch=meanwhile)
    assert_same(read_adapter(target, QWEN), other)
    assert {path.name for path in tmp_path.iterdir()} == {source.name, target.name}
