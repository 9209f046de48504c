"""Learning rates by factor and by layer."""

import pytest
import torch
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.parameter_groups import parameter_groups
from trainer_core.config import AdapterConfig, OptimizerSection
from trainer_core.errors import AdapterError


def make(**options):
    module = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
    return attach(module, AdapterConfig(rank=2, **options))


def as_table(adapter, groups):
    names = {id(parameter): name for name, parameter in adapter.named_parameters()}
    return {
        names[id(parameter)]: (group.rate, group.decays)
        for group in groups
        for parameter in group.parameters
    }


def test_without_options_there_is_one_group_in_the_adapters_order():
    adapter = make(kind="lokr")
    (group,) = parameter_groups(adapter, OptimizerSection())
    assert all(a is b for a, b in zip(group.parameters, adapter.parameters(), strict=True))
    assert (group.rate, group.decays) == (1.0, True)


def test_lora_plus_patterns_and_lengths():
    adapter = make(kind="lora", dora=True)
    settings = OptimizerSection(lora_plus_ratio=16.0, rate_pattern={"b": 0.5, ".*": 1.0})
    assert as_table(adapter, parameter_groups(adapter, settings)) == {
        "a.dora_scale": (1.0, False),
        "a.lora_down": (1.0, True),
        "a.lora_up": (16.0, True),
        "b.dora_scale": (0.5, False),
        "b.lora_down": (0.5, True),
        "b.lora_up": (8.0, True),
    }


def test_decay_by_pattern_and_the_rate_of_magnitudes():
    adapter = make(kind="lora", dora=True)
    settings = OptimizerSection(decay_pattern={"b": 0.0, ".*": 2.0}, magnitude_ratio=0.25)
    names = {id(parameter): name for name, parameter in adapter.named_parameters()}
    found = {
        names[id(parameter)]: (group.rate, group.decays, group.decay)
        for group in parameter_groups(adapter, settings)
        for parameter in group.parameters
    }
    assert found == {
        "a.dora_scale": (0.25, False, 1.0),
        "a.lora_down": (1.0, True, 2.0),
        "a.lora_up": (1.0, True, 2.0),
        "b.dora_scale": (0.25, False, 1.0),
        "b.lora_down": (1.0, True, 0.0),
        "b.lora_up": (1.0, True, 0.0),
    }
    with pytest.raises(AdapterError, match=r"decay_pattern.*matches no adapted layer"):
        parameter_groups(adapter, OptimizerSection(decay_pattern={"c": 2.0}))


@pytest.mark.parametrize("kind", ["loha", "lokr"])
def test_lora_plus_of_other_kinds_is_refused(kind):
    with pytest.raises(AdapterError, match="upper and the lower of two factors"):
        parameter_groups(make(kind=kind), OptimizerSection(lora_plus_ratio=2.0))


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(AdapterError, match=r"rate_pattern.*matches no adapted layer"):
        parameter_groups(make(), OptimizerSection(rate_pattern={"c": 2.0}))


@pytest.mark.parametrize("kind", ["lora", "loha"])
def test_rslora_scales_by_the_root_of_the_rank(kind):
    plain, rooted = make(kind=kind, alpha=3.0), make(kind=kind, alpha=3.0, rslora=True)
    for name, parameter in rooted.named_parameters():
        parameter.data.fill_(0.1)
        dict(plain.named_parameters())[name].data.fill_(0.1)
    ratio = rooted.delta_weight("a") / plain.delta_weight("a")
    # alpha / sqrt(2) instead of alpha / 2
    assert torch.allclose(ratio, torch.full_like(ratio, 2**0.5))
    layer = rooted.state().layers["a"]
    assert layer.alpha / layer.rank == pytest.approx(3.0 / 2**0.5, rel=1e-6)
