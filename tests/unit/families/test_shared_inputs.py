"""Which layers of a family read the same tensor, and what training with that in mind computes."""

import re

import pytest
from torch import nn

from tests.fixtures.families import record
from tests.fixtures.family_inputs import made_inputs
from trainer_core.families.registry import FAMILIES, get_family


def velocity(family, transformer):
    kept = record(family.name)
    noisy, sigma, conditioning, controls = made_inputs(kept)
    return family.prediction.predict(
        transformer, noisy, sigma, [conditioning], controls, kept.guidance
    )


def called_with_the_same(family, transformer):
    """Names of Linear layers of one block that are handed the very same tensor, by tensor."""
    handed = []
    for name, layer in transformer.named_modules():
        if isinstance(layer, nn.Linear):
            hook = lambda _, inputs, name=name: handed.append((inputs[0], name))  # noqa: E731
            layer.register_forward_pre_hook(hook)
    velocity(family, transformer)
    groups = {}
    for tensor, name in handed:
        # Blocks may be handed one tensor too, but are computed again one by one.
        block = tuple(name.split(".")[:2])
        groups.setdefault((id(tensor), block), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_names_the_layers_that_are_handed_one_tensor(name):
    family, transformer = get_family(name), record(name).small()
    named = {}
    for layer, module in transformer.named_modules():
        for pattern in family.layers.shared_inputs:
            match = re.fullmatch(pattern, layer)
            if match and isinstance(module, nn.Linear):
                named.setdefault((pattern, match.groups()), set()).add(layer)
    handed = called_with_the_same(family, transformer)
    assert {frozenset(names) for names in named.values()} == handed
    assert {pattern for pattern, _ in named} == set(family.layers.shared_inputs) != set()
