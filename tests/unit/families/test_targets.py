"""The target presets at full size, and the layers that never get a gradient."""

from __future__ import annotations

import re

import pytest
from torch import nn

from tests.fixtures.full_size import full_size_transformer, linear_layers
from trainer_core.families.registry import FAMILIES, get_family


def matching(patterns, names):
    return [name for name in names if any(re.fullmatch(item, name) for item in patterns)]


@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_leaves_out_only_what_no_file_can_carry_and_what_takes_no_rank(family):
    facts, transformer = get_family(family), full_size_transformer(family)
    names = linear_layers(transformer)
    left_out = set(names) - set(matching(facts.presets["all_linear"], names))
    single = {name for name in names if transformer.get_submodule(name).out_features == 1}
    assert left_out == set(matching(facts.unexportable, names)) | single


def test_unused_layers_are_found_at_full_size():
    transformer = full_size_transformer("qwen_image")
    patterns = get_family("qwen_image").unused_layers(transformer)
    found = matching(patterns, linear_layers(transformer))
    assert len(found) == 4
    assert all(name.startswith("transformer_blocks.59.") for name in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_repeated_blocks_hold_the_blocks(family):
    transformer = full_size_transformer(family)
    lists = {
        name: {type(block).__name__ for block in item}
        for name, item in transformer.named_modules()
        if isinstance(item, nn.ModuleList)
    }
    named = get_family(family).repeated_blocks
    own = set(transformer._repeated_blocks)
    assert set().union(*(lists[name] for name in named)) == own
    long = {
        name for name in lists if lists[name] <= own and len(transformer.get_submodule(name)) > 4
    }
    assert long <= set(named)
