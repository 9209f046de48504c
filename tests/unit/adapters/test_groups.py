"""Learning rates by factor and by layer."""

import pytest
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.parameter_groups import parameter_groups
from trainer_core.config import AdapterConfig, OptimizerSection
from trainer_core.errors import AdapterError


def make(**options):
    module = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
    return attach(module, AdapterConfig(rank=2, **options))


def test_rates_and_decays_by_factor_layer_and_length():
    adapter = make(kind="lora", dora=True)
    settings = OptimizerSection(
        lora_plus_ratio=16.0,
        magnitude_ratio=0.25,
        rate_pattern={"b": 0.5, ".*": 1.0},
        decay_pattern={"b": 0.0, ".*": 2.0},
    )
    names = {id(parameter): name for name, parameter in adapter.named_parameters()}
    found = {
        names[id(parameter)]: (group.rate, group.decays, group.decay)
        for group in parameter_groups(adapter, settings)
        for parameter in group.parameters
    }
    assert found == {
        "a.dora_scale": (0.25, False, 1.0),
        "a.lora_down": (1.0, True, 2.0),
        "a.lora_up": (16.0, True, 2.0),
        "b.dora_scale": (0.125, False, 1.0),
        "b.lora_down": (0.5, True, 0.0),
        "b.lora_up": (8.0, True, 0.0),
    }


@pytest.mark.parametrize("kind", ["loha", "lokr"])
def test_lora_plus_of_other_kinds_is_refused(kind):
    with pytest.raises(AdapterError, match="upper and the lower of two factors"):
        parameter_groups(make(kind=kind), OptimizerSection(lora_plus_ratio=2.0))


@pytest.mark.parametrize("pattern", ["rate_pattern", "decay_pattern"])
def test_a_pattern_that_matches_nothing_is_refused(pattern):
    with pytest.raises(AdapterError, match=rf"{pattern}.*matches no adapted layer"):
        parameter_groups(make(), OptimizerSection(**{pattern: {"c": 2.0}}))
