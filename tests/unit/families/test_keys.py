"""The key maps over every layer of the full-size architectures, both ways."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest
import torch
from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers

from tests.fixtures.full_size import full_size_transformer, linear_layers
from trainer_core.adapter_files.names.key_map import BLOCK_NUMBER, NativeKey
from trainer_core.families.registry import FAMILIES, get_family


class TaggedCheckpoint(dict):
    """A native FLUX checkpoint in which every tensor carries the number of its name."""

    def __init__(self, double_blocks: int, single_blocks: int) -> None:
        super().__init__({"guidance_in.in_layer.weight": None})
        self.update({f"double_blocks.{index}.x": None for index in range(double_blocks)})
        self.update({f"single_blocks.{index}.x": None for index in range(single_blocks)})
        self.names: list[str] = []

    def pop(self, name, *default):
        self.names.append(name)
        # As many rows as the widest fused layer, which the converter splits by fixed sizes.
        return torch.tensor(len(self.names) - 1).expand(7 * 3072)


@pytest.fixture(scope="module")
def fluxs_native_names():
    """Module path to the native name that Diffusers' own converter reads it from."""
    checkpoint = TaggedCheckpoint(19, 38)
    converted = convert_flux_transformer_checkpoint_to_diffusers(checkpoint)
    return {
        name.removesuffix(".weight"): checkpoint.names[int(tensor[0])].removesuffix(".weight")
        for name, tensor in converted.items()
        if name.endswith(".weight")
    }


def test_fluxs_names_are_those_of_diffusers_converter(fluxs_native_names):
    family = get_family("flux")
    for path in linear_layers(full_size_transformer("flux")):
        key = family.key_map.to_native(path)
        if path == "norm_out.linear":
            assert key is None
        else:
            assert key is not None
            assert key.name == fluxs_native_names[path]


def test_a_part_shares_its_native_layer_and_a_whole_does_not(fluxs_native_names):
    family = get_family("flux")
    paths = linear_layers(full_size_transformer("flux"))
    shared = Counter(fluxs_native_names[path] for path in paths)
    keys = {path: family.key_map.to_native(path) for path in paths}
    parts = {path for path, key in keys.items() if key and key.part}
    assert parts == {path for path in paths if shared[fluxs_native_names[path]] > 1}
    assert len(parts) == 19 * 6 + 38 * 4


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_layers_come_back_from_their_native_names(family):
    facts = get_family(family)
    for path in linear_layers(full_size_transformer(family)):
        key = facts.key_map.to_native(path)
        if key is not None and not key.part:
            assert facts.key_map.to_module(key.name) == path
        elif key is not None:
            assert facts.key_map.to_module(key.name) is None


def test_qwens_names_are_its_own():
    facts = get_family("qwen_image")
    for path in linear_layers(full_size_transformer("qwen_image")):
        assert facts.key_map.to_native(path) == NativeKey(path, part=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_templates_name_every_layer_and_no_other(family):
    key_map = get_family(family).key_map
    known = {p for p in linear_layers(full_size_transformer(family)) if key_map.to_native(p)}
    # The first number of a path is the block's.
    found = {re.sub(rf"\.({BLOCK_NUMBER})(?=\.)", ".{}", path, count=1) for path in known}
    assert found == set(key_map.layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_whose_dots_became_lines_is_found(family):
    key_map = get_family(family).key_map
    for path in linear_layers(full_size_transformer(family)):
        native = key_map.to_native(path)
        if native is not None:
            assert key_map.module_of_flat(path.replace(".", "_")) == path
            assert key_map.native_of_flat(native.name.replace(".", "_")) == native.name
    assert key_map.module_of_flat("transformer_blocks_x_attn_to_q") is None
    assert key_map.native_of_flat("transformer_blocks_0_attn") is None


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_the_modules_of_a_fused_layer(family):
    key_map = get_family(family).key_map
    fused = defaultdict(list)
    for path in linear_layers(full_size_transformer(family)):
        native = key_map.to_native(path)
        if native is not None and native.part:
            fused[native.name].append(path)
    for name, paths in fused.items():
        assert sorted(part.module for part in key_map.parts(name)) == sorted(paths)
    assert key_map.parts("img_in") == ()


def test_shares_are_those_of_the_rows():
    transformer = full_size_transformer("flux")
    rows = {p: transformer.get_submodule(p).out_features for p in linear_layers(transformer)}
    for native in ("double_blocks.0.txt_attn.qkv", "single_blocks.37.linear1"):
        parts = get_family("flux").key_map.parts(native)
        assert {rows[part.module] / part.share for part in parts} == {3072}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_without_a_name_is_explained(family):
    facts = get_family(family)
    for path in linear_layers(full_size_transformer(family)):
        if facts.key_map.to_native(path) is None:
            reasons = [
                text for item, text in facts.unexportable.items() if re.fullmatch(item, path)
            ]
            assert reasons


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "name",
    ["", "transformer_blocks.0.attn", "transformer_blocks.x.attn.to_q", "blocks.0.attn.to_q",
     "transformer_blocks.0.attn.to_q.weight", "single_blocks.0.linear3",
     "transformer_blocks.00.attn.to_q", "double_blocks.00.img_attn.proj",
     "transformer_blocks.\u0663.attn.to_q", "double_blocks.\u0663.img_attn.proj"],
)  # fmt: skip
def test_names_that_are_no_layers_have_no_counterpart(family, name):
    facts = get_family(family)
    assert facts.key_map.to_native(name) is None
    assert facts.key_map.to_module(name) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prefix", ["", "transformer.", "model.diffusion_model."])
def test_a_base_is_recognised_by_its_own_family_only(family, prefix):
    keys = [f"{prefix}{path}.weight" for path in linear_layers(full_size_transformer(family))]
    assert [name for name in FAMILIES if FAMILIES[name].detect(keys)] == [family]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", ["attention", "default"])
def test_an_adapter_is_recognised_by_its_own_family_only(family, preset):
    facts = get_family(family)
    patterns = facts.presets[preset]
    layouts = defaultdict(list)
    for path in linear_layers(full_size_transformer(family)):
        if any(re.fullmatch(item, path) for item in patterns):
            key = facts.key_map.to_native(path)
            native = f"transformer.{path}" if key.part else f"diffusion_model.{key.name}"
            layouts["comfyui"].append(f"{native}.lora_up.weight")
            layouts["diffusers"].append(f"transformer.{path}.lora_B.weight")
    for keys in layouts.values():
        found = [name for name in FAMILIES if FAMILIES[name].detect(keys)]
        assert found in ([family], [facts.twin])


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["lora_unet_down_blocks_0_attentions_0.lora_up.weight"],
        ["txt_in.individual_token_refiner.blocks.0.x", "double_blocks.0.img_attn.qkv.weight"],
    ],
    ids=["nothing", "SDXL", "HunyuanVideo"],
)
def test_other_architectures_are_not_recognised(keys):
    assert [name for name in FAMILIES if FAMILIES[name].detect(keys)] == []
