"""Layers that other programs fuse, and names with some dots as lines: read where that is exact."""

import pytest
import torch
from safetensors.torch import save_file

from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.names.layer_match import match_layer
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.bases.base_weights import open_base
from trainer_core.cli import main
from trainer_core.families.registry import FAMILIES

QKV, ADDED = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")
FUSED = {
    ("qwen_image", "transformer_blocks.3.attn.to_qkv"): (QKV, [3072, 3072, 3072], 3072),
    ("qwen_image", "transformer_blocks.3.attn.to_added_qkv"): (ADDED, [3072, 3072, 3072], 3072),
    ("qwen_image", "transformer_blocks.59.attn.add_qkv_proj"): (ADDED, [3072, 3072, 3072], 3072),
    ("flux", "transformer_blocks.18.attn.to_qkv"): (QKV, [3072, 3072, 3072], 3072),
    ("flux", "transformer_blocks.0.attn.to_added_qkv"): (ADDED, [3072, 3072, 3072], 3072),
    ("flux", "single_transformer_blocks.37.attn.to_qkv"): (QKV, [3072, 3072, 3072], 3072),
    ("chroma", "single_transformer_blocks.37.attn.to_qkv"): (QKV, [3072, 3072, 3072], 3072),
    ("flux2", "transformer_blocks.0.attn.to_added_qkv"): (ADDED, [4096, 4096, 4096], 4096),
    ("z_image", "layers.29.attention.to_qkv"): (QKV, [3840, 3840, 3840], 3840),
    ("z_image", "context_refiner.1.attention.to_kv"): (QKV[1:], [3840, 3840], 3840),
    ("krea2", "transformer_blocks.27.attn.to_qkv"): (QKV, [6144, 1536, 1536], 6144),
    ("krea2", "transformer_blocks.0.attn.to_kv"): (QKV[1:], [1536, 1536], 6144),
    ("krea2", "text_fusion.refiner_blocks.1.attn.to_qkv"): (QKV, [2560, 2560, 2560], 2560),
    ("qwen_image_21", "transformer_blocks.31.attn.to_qkv"): (QKV, [4096, 4096, 4096], 4096),
}
"""A layer as Diffusers fuses it, to its parts, the rows of each in a published base, columns."""

SPELLINGS = ("transformer.{}", "{}", "diffusion_model.{}", "base_model.model.{}")
FLAT = ("lycoris_{}", "lora_unet_{}", "lora_transformer_{}")


def spelt(name):
    yield from (spelling.format(name) for spelling in SPELLINGS)
    yield from (spelling.format(name.replace(".", "_")) for spelling in FLAT)


@pytest.mark.parametrize(("family", "name"), FUSED)
def test_a_fused_lora_is_read_as_the_rows_of_its_parts(family, name, tmp_path):
    path, key_map = tmp_path / "a.safetensors", FAMILIES[family].layers.key_map
    own, rows, columns = FUSED[family, name]
    parts = [f"{name.rpartition('.')[0]}.{part}" for part in own]
    up, down = torch.randn(sum(rows), 1), torch.randn(1, columns)
    factors = {"lora_A": down, "lora_B": up}
    save_file({f"transformer.{name}.{end}.weight": each for end, each in factors.items()}, path)
    layers = read_adapter(path, key_map).layers
    assert list(layers) == parts
    for layer, expected in zip(layers.values(), up.split(rows), strict=True):
        assert torch.equal(layer.tensors["lora_up"], expected)
        assert torch.equal(layer.tensors["lora_down"], down)
    assert adapter_family(path, family).name == family
    for spelling in spelt(name):
        assert [part for part, _ in match_layer(spelling, key_map).modules] == parts
    assert match_layer(f"transformer.{name}x", key_map) is None


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("krea2", "transformer_blocks.0.attn.to_qkv"),
        ("flux", "single_transformer_blocks.0.attn.to_qkv"),
        ("flux", "transformer_blocks.0.attn.to_qkv"),
    ],
)
def test_a_fused_difference_is_divided_too(family, name, tmp_path):
    path, out, key_map = tmp_path / "a.safetensors", tmp_path / "b", FAMILIES[family].layers.key_map
    rows = [6144, 1536, 1536] if family == "krea2" else [3072, 3072, 3072]
    value = torch.randn(sum(rows), 2)
    patches = {"diff": value, "diff_b": value[:, 0].clone()}
    save_file({f"transformer.{name}.{end}": each for end, each in patches.items()}, path)
    extras = read_adapter(path, key_map).extras
    found = torch.cat([extras[native]["diff"] for native in extras])
    assert torch.equal(found[: len(value)], value)
    assert not found[len(value) :].any()  # of the MLP, which is the same layer in ComfyUI
    biases = torch.cat([extras[native]["diff_b"] for native in extras])
    assert torch.equal(biases[: len(value)], value[:, 0])
    convert(path, out.with_suffix(".safetensors"), "comfyui", key_map)


WIDTH = 2560


def test_a_lokr_that_cannot_be_divided_is_merged_as_it_is(tmp_path):
    stem, tensors = "transformer_blocks.0.attn", {"lokr_w1": (16, 8), "lokr_w2": (24, 16)}
    path, out = tmp_path / "a.safetensors", tmp_path / "out"
    tensors = {end: torch.randn(size) for end, size in tensors.items()}
    save_file({f"transformer.{stem}.to_qkv.{end}": each for end, each in tensors.items()}, path)
    assert main(["merge", "embedded", str(path), str(out)]) == 0
    delta = torch.kron(tensors["lokr_w1"], tensors["lokr_w2"])
    before, after = open_base("embedded"), open_base(str(out))
    for part, rows in zip(QKV, delta.split(128), strict=True):
        changed = after.weight(f"{stem}.{part}") - before.weight(f"{stem}.{part}")
        torch.testing.assert_close(changed, rows, atol=0.02, rtol=0.02)


def lokr(folder, blocks, dora=False):
    name = "lycoris_text_fusion_refiner_blocks_0_attn_to_qkv"
    tensors = {
        f"{name}.lokr_w1": torch.randn(blocks, 16),
        f"{name}.lokr_w2_a": torch.randn(3 * WIDTH // blocks, 1),
        f"{name}.lokr_w2_b": torch.randn(1, WIDTH // 16),
        f"{name}.alpha": torch.tensor(1.0),
    }
    if dora:
        tensors[f"{name}.dora_scale"] = torch.rand(1, WIDTH)
    path = folder / "a.safetensors"
    save_file(tensors, path)
    return path


@pytest.mark.parametrize(("blocks", "dora"), [(6, False), (16, False), (16, True)])
def test_a_lokr_is_divided_between_its_blocks_and_else_a_lora_is_offered(
    blocks, dora, tmp_path, capsys
):
    path, out = lokr(tmp_path, blocks, dora), tmp_path / "out.safetensors"
    assert adapter_family(path).name == "krea2"
    words = ["convert", str(path), str(out), "--to", "comfyui"]
    code = main(words)
    shown = capsys.readouterr().err
    if blocks == 6:
        assert code == 0
        first, second = (
            read_adapter(each, FAMILIES["krea2"].layers.key_map) for each in (path, out)
        )
        for name, layer in first.layers.items():
            theirs = layer_delta("lokr", second.layers[name])
            torch.testing.assert_close(layer_delta("lokr", layer), theirs)
        return
    assert code == 2
    assert "one layer in the file and text_fusion.refiner_blocks.0.attn.to_q" in shown
    assert "--approximate lora --rank N" in shown
    assert "leave" not in shown.lower()
    assert not out.exists()
    if dora:
        assert "--base PATH" in shown
        return
    assert main([*words, "--approximate", "lora", "--rank", "2"]) == 0
    layers = read_adapter(out, FAMILIES["krea2"].layers.key_map).layers
    assert sorted(name[-1] for name in layers) == ["k", "q", "v"]
