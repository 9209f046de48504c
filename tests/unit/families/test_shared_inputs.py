"""Which layers of a family read the same tensor, and what training with that in mind computes."""

import re

import pytest
import torch
from fixtures.textbook import relative
from torch import nn

from tests.fixtures.families import record
from tests.fixtures.family_inputs import made_inputs
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.families.registry import FAMILIES, get_family


def velocity(family, transformer):
    kept = record(family.name)
    noisy, sigma, conditioning, controls = made_inputs(kept)
    return family.predict(transformer, noisy, sigma, [conditioning], controls, kept.guidance)


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
        for pattern in family.shared_inputs:
            match = re.fullmatch(pattern, layer)
            if match and isinstance(module, nn.Linear):
                named.setdefault((pattern, match.groups()), set()).add(layer)
    handed = called_with_the_same(family, transformer)
    assert {frozenset(names) for names in named.values()} == handed
    assert {pattern for pattern, _ in named} == set(family.shared_inputs) != set()


@pytest.mark.parametrize(("kind", "checkpointing"), [("lora", True), ("lokr", False)])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_computes_what_it_computed_without(name, kind, checkpointing):
    """In training with checkpoints, and in evaluation mode: gradients of all factors."""
    family, found = get_family(name), []
    for shared in ((), family.shared_inputs):
        torch.manual_seed(0)
        transformer = record(name).small()
        adapter = attach(
            transformer,
            AdapterConfig(kind=kind, rank=2, targets="all_linear"),
            presets=family.presets,
            unused=family.unused_layers(transformer),
            shared=shared,
        )
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter += 0.03 * torch.randn(parameter.shape, generator=generator)
        if checkpointing:
            family.enable_checkpointing(transformer.train())
        output = velocity(family, transformer)
        gradients = torch.autograd.grad(output.square().sum(), adapter.parameters())
        found.append([output, *gradients])
        assert bool(adapter.shared_inputs) == bool(shared)
        waiting = [layer.shared for layer in adapter.layers.values() if layer.shared]
        assert bool(waiting) == bool(shared)
        assert all(group.waits_for == () for group in waiting)
    for with_it, without in zip(*found, strict=True):
        # Products of other shapes add up in another order, in each of up to 30 blocks.
        assert relative(with_it, without) < 1e-4
