"""A base's weights are found by Diffusers' names, whatever form it has."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.flux_files import write_folder, write_native
from tests.fixtures.native_files import (
    F8,
    dequantised,
    flux_to_native,
    make_native_flux,
    to_scaled,
)
from trainer_core.bases.open import open_base
from trainer_core.errors import BaseModelError


@pytest.fixture(scope="module")
def model():
    return make_native_flux(layers=1, single_layers=1)


@pytest.fixture(scope="module")
def state(model):
    return dict(model.state_dict())


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("base") / "flux", model)


def assert_same(base, state):
    for name, tensor in state.items():
        assert base.shape(name) == tuple(tensor.shape), name
        assert torch.equal(base.tensor(name), tensor), name


def test_every_tensor_of_a_native_file_is_found_by_diffusers_name(state, tmp_path):
    base = open_base(write_native(tmp_path / "flux.safetensors", state))
    assert (base.family.name, base.native, base.is_folder) == ("flux", True, False)
    assert_same(base, state)
    # Halves in the opposite order, and norms, have no name that could be turned round.
    other = {name for name in base.names if name not in state}
    assert len(base.names) == len(state)
    assert all("norm" in name or "adaLN" in name for name in other)
    assert "norm_out.linear" not in base.modules
    assert {"single_transformer_blocks.0.proj_mlp", "transformer_blocks.0.attn.to_k"} <= set(
        base.modules
    )


def test_a_swapped_half_and_a_wrong_part_would_be_noticed(state, tmp_path):
    native = flux_to_native(state)
    name = "final_layer.adaLN_modulation.1.weight"
    swapped = {**native, name: torch.cat(native[name].chunk(2)[::-1])}
    qkv = native["double_blocks.0.img_attn.qkv.weight"].chunk(3)
    swapped["double_blocks.0.img_attn.qkv.weight"] = torch.cat([qkv[1], qkv[0], qkv[2]])
    save_file({k: v.contiguous() for k, v in swapped.items()}, tmp_path / "flux.safetensors")
    base = open_base(tmp_path / "flux.safetensors")
    wrong = {n for n, tensor in state.items() if not torch.equal(base.tensor(n), tensor)}
    assert wrong == {
        "norm_out.linear.weight",
        "transformer_blocks.0.attn.to_q.weight",
        "transformer_blocks.0.attn.to_k.weight",
    }


def test_shards_of_a_folder_are_one_base(state, folder):
    base = open_base(folder)
    assert base.is_folder
    assert len(base.files) > 3
    assert_same(base, state)
    assert sorted(base.names) == sorted(state)


@pytest.mark.parametrize("spelling", ["old", "new", "header", "plain", "checkpoint"])
def test_weights_in_8_bits_are_dequantised_in_float32(spelling, state, tmp_path):
    native = flux_to_native(state)
    tensors, metadata = to_scaled(native, "old" if spelling == "plain" else spelling)
    if spelling == "plain":
        tensors, metadata = {name: tensor.to(F8) for name, tensor in native.items()}, {}
    elif spelling == "checkpoint":
        tensors, metadata = to_scaled(native, "new", "model.diffusion_model.")
        tensors["vae.conv.weight"] = torch.ones(2, 2)
    path = tmp_path / "flux.safetensors"
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata)
    base = open_base(path)
    prefix = "model.diffusion_model." if spelling == "checkpoint" else ""
    layer = f"{prefix}double_blocks.0.txt_attn.qkv"
    weight = tensors[f"{layer}.weight"]
    scale = tensors.get(f"{layer}.weight_scale", tensors.get(f"{layer}.scale_weight"))
    expected = weight.float() if scale is None else dequantised(weight, scale, torch.float32)
    parts = [f"transformer_blocks.0.attn.add_{part}_proj" for part in "qkv"]
    assert torch.equal(torch.cat([base.weight(part) for part in parts]), expected)
    assert len(base.names) == len(state), "scales, notes and other parts are no weights"


def test_a_scale_for_each_row_is_cut_with_the_rows(state, tmp_path):
    tensors, metadata = to_scaled(flux_to_native(state), "new")
    layer = "single_blocks.0.linear1"
    rows = len(tensors[f"{layer}.weight"])
    scales = torch.linspace(0.5, 1.5, rows)[:, None]
    tensors[f"{layer}.weight_scale"] = scales
    save_file(tensors, tmp_path / "flux.safetensors", metadata)
    base = open_base(tmp_path / "flux.safetensors")
    third = rows // 7
    expected = tensors[f"{layer}.weight"].float()[third : 2 * third] * scales[third : 2 * third]
    assert torch.equal(base.weight("single_transformer_blocks.0.attn.to_k"), expected)


def test_a_distilled_base_can_be_opened(tmp_path):
    model = make_native_flux(guidance=False, layers=1, single_layers=1)
    base = open_base(write_native(tmp_path / "flux-schnell.safetensors", model.state_dict()))
    assert_same(base, model.state_dict())


def test_the_embedded_base_is_a_folder():
    base = open_base("embedded")
    assert (base.family.name, base.is_folder) == ("qwen_image", True)
    name = "transformer_blocks.0.attn.to_q"
    stored = load_file(base.files[0].path)[f"{name}.weight"]
    assert torch.equal(base.weight(name), stored.float())


def test_float64_stays_float64(state, tmp_path):
    path = write_native(tmp_path / "f.safetensors", {k: v.double() for k, v in state.items()})
    assert open_base(path).weight("proj_out").dtype == torch.float64


def test_what_cannot_be_opened_is_said_without_a_settings_name(state, folder, tmp_path):
    cases = [
        (tmp_path / "absent.safetensors", None, "does not exist"),
        (tmp_path, None, "model_index.json"),
        (folder, "qwen_image", "family flux"),
        (folder, "sd", "family: 'sd'"),
    ]
    (tmp_path / "empty.safetensors").write_bytes(b"")
    cases.append((tmp_path / "empty.safetensors", None, "no whole safetensors file"))
    save_file({"lora_unet_x.lora_up.weight": torch.ones(2, 2)}, tmp_path / "lora.safetensors")
    cases.append((tmp_path / "lora.safetensors", None, "it is an adapter"))
    for path, family, words in cases:
        with pytest.raises(BaseModelError) as caught:
            open_base(path, family)
        assert words in str(caught.value)
        assert "base.path" not in str(caught.value)
    with pytest.raises(BaseModelError, match=r"has no other\.weight"):
        open_base(folder).weight("other")


def test_an_index_that_leads_out_of_the_folder_is_refused(model, tmp_path):
    folder = write_folder(tmp_path / "flux", model)
    path = folder / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    index = json.loads(path.read_text())
    shard = next(iter(set(index["weight_map"].values())))
    (tmp_path / "outside.safetensors").write_bytes((folder / "transformer" / shard).read_bytes())
    index["weight_map"] = {
        name: "../../outside.safetensors" if file == shard else file
        for name, file in index["weight_map"].items()
    }
    path.write_text(json.dumps(index))
    with pytest.raises(BaseModelError, match=r"names of \.safetensors files beside it"):
        open_base(folder)
