"""Which layers of a family read the same tensor, and what training with that in mind computes."""

import re

import pytest
import torch
from fixtures.textbook import relative
from torch import nn

from tests.fixtures.families import record
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.families.registry import FAMILIES, get_family


def velocity(family, transformer):
    kept = record(family.name)
    generator = torch.Generator().manual_seed(0)
    noisy = torch.randn(1, *kept.latents, generator=generator)
    conditioning = kept.conditioning(generator, kept.text)
    controls = [torch.randn(1, *shape, generator=generator) for shape in kept.controls]
    return family.predict(transformer, noisy, torch.tensor([0.4]), [conditioning], controls, 2.0)


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
    assert {frozenset(names) for names in named.values()} == called_with_the_same(
        family, transformer
    )
    assert named


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["lora", "lokr"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_training_step_computes_what_it_computed_without(name, kind, checkpointing):
    family, found = get_family(name), []
    for shared in ((), family.shared_inputs):
        torch.manual_seed(0)
        transformer = record(name).small()
        adapter = attach(
            transformer,
            AdapterConfig(kind=kind, rank=2),
            presets=family.presets,
            unused=family.unused_layers(transformer),
            shared=shared,
        )
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        transformer.train()
        if checkpointing:
            family.enable_checkpointing(transformer)
        output = velocity(family, transformer)
        gradients = torch.autograd.grad(output.square().sum(), adapter.parameters())
        found.append([output, *gradients])
        assert bool(adapter.shared_inputs) == bool(shared)
        waiting = [layer.shared for layer in adapter.layers.values() if layer.shared]
        assert bool(waiting) == bool(shared)
        assert all(group.waits_for == () for group in waiting)
    for with_it, without in zip(*found, strict=True):
        # Products of other shapes add up in another order, in each of up to 30 blocks.
        assert relative(with_it, without) < 2e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_every_expression_finds_layers_of_the_default_preset(name):
    family, transformer = get_family(name), record(name).small()
    for pattern in family.shared_inputs:
        adapter = attach(
            transformer, AdapterConfig(rank=2), presets=family.presets, shared=[pattern]
        )
        assert adapter.shared_inputs
        adapter.detach()
