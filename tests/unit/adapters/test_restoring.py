import pytest
import torch
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.restoring import attach_state, fitting_config
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError
from trainer_core.types import AdapterState

CONFIGS = [
    {"kind": "lora", "rank": 3},
    {"kind": "lora", "rank": 4, "alpha": 1.5, "rank_pattern": {"first": 2}},
    {"kind": "loha", "rank": 2, "alpha": 8.0},
    {"kind": "lokr", "rank": 2},
    {"kind": "lokr", "rank": 2, "factor": 4, "alpha": 1.0},
    {"kind": "lokr", "rank": 2, "factor": 8, "full_matrix": True},
    {"kind": "lokr", "rank": 1, "factor": 6, "decompose_both": True, "alpha": 3.0},
    {"kind": "lokr", "rank": 64},
    {"kind": "lokr", "rank": 2, "factor": 4, "unbalanced": True},
    {"kind": "lokr", "rank": 2, "factor": 8, "unbalanced": True, "full_matrix": True},
]


def make_module():
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential()
    for name, size in {"first": (24, 48), "second": (48, 36), "third": (36, 24)}.items():
        module.add_module(name, nn.Linear(*size))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 5)
    return module


def trained_state(config):
    """An adapter whose every factor is non-zero, with its output."""
    module = make_module()
    adapter = attach(module, config)
    with torch.no_grad():
        for index, parameter in enumerate(adapter.parameters()):
            generator = torch.Generator().manual_seed(index)
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    adapter.eval()
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(9))
    return adapter.state(), x, module(x)


@pytest.mark.parametrize("values", CONFIGS, ids=str)
def test_state_without_settings_computes_the_same_on_a_fresh_base(values):
    state, x, expected = trained_state(AdapterConfig.model_validate(values))
    bare = AdapterState(state.kind, state.layers)
    module = make_module()
    before = module(x)
    adapter = attach_state(module, bare)
    adapter.eval()
    assert torch.equal(module(x), expected)
    assert not torch.allclose(before, expected, rtol=0.1)
    restored = adapter.state()
    for name, layer in state.layers.items():
        assert (restored.layers[name].rank, restored.layers[name].alpha) == (
            layer.rank,
            layer.alpha,
        )


def test_layer_that_the_base_lacks_is_named_with_near_ones():
    state, _, _ = trained_state(AdapterConfig(kind="lora", rank=2))
    layers = {"secand" if name == "second" else name: s for name, s in state.layers.items()}
    with pytest.raises(AdapterError, match="second") as error:
        attach_state(make_module(), AdapterState("lora", layers))
    assert "'secand' is no Linear" in str(error.value)


def test_adapter_of_another_size_names_layer_and_shapes():
    state, _, _ = trained_state(AdapterConfig(kind="lokr", rank=2))
    module = make_module()
    module.second = nn.Linear(48, 40)
    with pytest.raises(AdapterError, match="40 x 48"):
        attach_state(module, state)


def test_one_rule_of_splitting_must_explain_every_layer():
    one, _, _ = trained_state(AdapterConfig(kind="lokr", rank=2, factor=4))
    other, _, _ = trained_state(AdapterConfig(kind="lokr", rank=2, factor=2))
    mixed = AdapterState("lokr", {**one.layers, "third": other.layers["third"]})
    with pytest.raises(AdapterError, match="third"):
        fitting_config(make_module(), mixed)


def test_differences_that_are_no_factors_are_not_dropped_silently():
    state, _, _ = trained_state(AdapterConfig(kind="lora", rank=2))
    extras = {"second": {"diff_b": torch.ones(40)}}
    module = make_module()
    with pytest.raises(AdapterError, match=r"second\.diff_b"):
        attach_state(module, AdapterState("lora", state.layers, extras=extras))
    assert isinstance(module.second, nn.Linear)
