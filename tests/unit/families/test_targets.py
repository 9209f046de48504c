"""The target presets at full size, and the layers that never get a gradient."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from tests.fixtures.flux_base import make_flux_transformer
from tests.fixtures.full_size import full_size_transformer, linear_layers
from tests.fixtures.qwen_base import make_qwen_transformer
from trainer_core.families.registry import FAMILIES, get_family

# Linear layers of a block times blocks, counted from the architectures' papers and code.
COUNTS = {
    ("qwen_image", "attention"): 60 * 8,
    ("qwen_image", "attention_mlp"): 60 * (8 + 4),
    ("qwen_image", "default"): 60 * (8 + 4),
    ("qwen_image", "musubi"): 60 * (8 + 4 + 2),
    ("qwen_image", "all_linear"): 60 * (8 + 4 + 2) + 6,
    ("flux", "attention"): 19 * 8 + 38 * 3,
    ("flux", "attention_mlp"): 19 * (8 + 4) + 38 * (3 + 2),
    ("flux", "default"): 19 * (8 + 4) + 38 * (3 + 2),
    ("flux", "musubi"): 19 * (8 + 4) + 38 * (3 + 2),
    ("flux", "all_linear"): 19 * (8 + 4 + 2) + 38 * (3 + 2 + 1) + 9,
}


def matching(patterns, names):
    return [name for name in names if any(re.fullmatch(item, name) for item in patterns)]


@pytest.mark.parametrize(("family", "preset"), COUNTS)
def test_presets_reach_the_counted_layers_at_full_size(family, preset):
    names = linear_layers(full_size_transformer(family))
    patterns = get_family(family).presets[preset]
    assert len(matching(patterns, names)) == COUNTS[family, preset]
    for pattern in patterns:
        assert matching([pattern], names)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_preset_is_counted(family):
    counted = {preset for name, preset in COUNTS if name == family}
    assert counted == set(get_family(family).presets)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_leaves_out_only_what_no_file_can_carry(family):
    facts = get_family(family)
    names = linear_layers(full_size_transformer(family))
    left_out = set(names) - set(matching(facts.presets["all_linear"], names))
    assert left_out == set(matching(facts.unexportable, names))


def without_gradient(family, transformer, conditioning):
    """Linear layers whose weights get no gradient, or only zeros."""
    transformer.requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    noisy, control = torch.randn(2, 1, 4, 8, 8, generator=generator)
    velocity = family.predict(
        transformer, noisy, torch.tensor([0.4]), [conditioning], [control], 2.0
    )
    velocity.square().mean().backward()
    layers = [(name, item) for name, item in transformer.named_modules()]
    return {
        name
        for name, item in layers
        if isinstance(item, nn.Linear) and (item.weight.grad is None or not item.weight.grad.any())
    }


@pytest.mark.parametrize("layers", [2, 3])
def test_qwens_unused_layers_are_those_without_a_gradient(layers):
    family = get_family("qwen_image")
    transformer = make_qwen_transformer(layers)
    conditioning = {"text_embeddings": torch.randn(5, 32)}
    found = without_gradient(family, transformer, conditioning)
    patterns = family.unused_layers(transformer)
    assert found == set(matching(patterns, linear_layers(transformer)))
    assert len(found) == 4


def test_every_layer_of_flux_gets_a_gradient():
    family = get_family("flux")
    transformer = make_flux_transformer()
    conditioning = {"text_embeddings": torch.randn(5, 32), "pooled_text": torch.randn(24)}
    assert without_gradient(family, transformer, conditioning) == set()
    assert family.unused_layers(transformer) == ()


def test_unused_layers_are_found_at_full_size():
    transformer = full_size_transformer("qwen_image")
    patterns = get_family("qwen_image").unused_layers(transformer)
    found = matching(patterns, linear_layers(transformer))
    assert len(found) == 4
    assert all(name.startswith("transformer_blocks.59.") for name in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_repeated_blocks_hold_the_blocks(family):
    transformer = full_size_transformer(family)
    blocks = [
        type(block).__name__
        for path in get_family(family).repeated_blocks
        for block in transformer.get_submodule(path)
    ]
    assert set(blocks) == set(transformer._repeated_blocks)
    assert len(blocks) == {"qwen_image": 60, "flux": 57}[family]
