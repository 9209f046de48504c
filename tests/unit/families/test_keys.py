"""Key maps both ways, target presets and blocks of the full-size architectures."""

import re
from collections import defaultdict

import pytest
import torch
from torch import nn

from tests.fixtures.full_size import full_size_transformer, linear_layers
from trainer_core.adapter_files.names.key_map import BLOCK_NUMBER
from trainer_core.families.registry import FAMILIES, get_family


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_has_a_name_both_ways_or_a_reason(family):
    """Also where dots became lines, and of the parts of a fused layer."""
    facts = get_family(family)
    key_map, fused = facts.layers.key_map, defaultdict(list)
    for path in linear_layers(full_size_transformer(family)):
        key = key_map.to_native(path)
        if key is None:
            assert any(re.fullmatch(item, path) for item in facts.layers.unexportable), path
            continue
        assert key_map.to_module(key.name) == (None if key.part else path)
        assert key_map.module_of_flat(path.replace(".", "_")) == path
        assert key_map.native_of_flat(key.name.replace(".", "_")) == key.name
        if key.part:
            fused[key.name].append(path)
    for name, paths in fused.items():
        assert sorted(part.module for part in key_map.parts(name)) == sorted(paths)
    assert key_map.parts("img_in") == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_templates_name_every_layer_and_no_other(family):
    layers = get_family(family).layers
    key_map, whole = layers.key_map, full_size_transformer(family)
    with torch.device("meta"):
        others = [type(whole)(**{**whole.config, **own}) for own in layers.published.values()]
    known = {p for each in (whole, *others) for p in linear_layers(each) if key_map.to_native(p)}
    # The first number of a path is the block's.
    number = re.compile(rf"\.({BLOCK_NUMBER})(?=\.)")
    found = {p if p in key_map.layers else number.sub(".{}", p, count=1) for p in known}
    assert found == set(key_map.layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_repeated_blocks_hold_the_blocks(family):
    transformer = full_size_transformer(family)
    lists = {
        name: {type(block).__name__ for block in item}
        for name, item in transformer.named_modules()
        if isinstance(item, nn.ModuleList)
    }
    named = get_family(family).layers.repeated_blocks
    own = set(transformer._repeated_blocks)
    assert set().union(*(lists[name] for name in named)) == own
    long = {
        name for name in lists if lists[name] <= own and len(transformer.get_submodule(name)) > 4
    }
    assert long <= set(named)
