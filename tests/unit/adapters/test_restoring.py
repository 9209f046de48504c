import pytest
import torch
from torch import nn

from tests.fixtures.tables import table
from trainer_core.adapters import attach
from trainer_core.adapters.attach_state import attach_state
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.adapters.warm_start import start_from
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError
from trainer_core.types import AdapterState, LayerState

CONFIGS = table(__file__, "restored")


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
    assert "'secand' is not a Linear" in str(error.value)


def test_adapter_of_another_size_names_layer_and_shapes():
    state, _, _ = trained_state(AdapterConfig(kind="lokr", factor=-1, rank=2))
    module = make_module()
    module.second = nn.Linear(48, 40)
    with pytest.raises(AdapterError, match="40 x 48"):
        attach_state(module, state)


def test_a_lokr_may_split_each_layer_its_own_way():
    one, x, _ = trained_state(AdapterConfig(kind="lokr", rank=2, factor=4))
    other, _, _ = trained_state(AdapterConfig(kind="lokr", rank=2, factor=2))
    generator = torch.Generator().manual_seed(1)
    # The factors of the first layer are of two sizes that no one factor gives.
    sizes = {"lokr_w1": (2, 4), "lokr_w2": (24, 6)}
    first = LayerState({n: torch.randn(s, generator=generator) for n, s in sizes.items()}, 1.0, 1)
    mixed = AdapterState("lokr", {**one.layers, "first": first, "third": other.layers["third"]})
    module = make_module()
    expected = x
    for name in ("first", "second", "third"):
        linear, delta = module.get_submodule(name), layer_delta("lokr", mixed.layers[name])
        expected = nn.functional.linear(expected, linear.weight + delta, linear.bias)
    adapter = attach_state(module, mixed)
    torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-4)
    (module(x) + 1).square().sum().backward()
    assert all(each.grad is not None for each in adapter.parameters())
    restored = adapter.state()
    for name, layer in mixed.layers.items():
        for factor, tensor in layer.tensors.items():
            assert torch.equal(restored.layers[name].tensors[factor], tensor)


BROKEN = table(__file__, "broken_states")


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("way", ["attach_state", "start_from"])
def test_a_state_that_is_no_adapter_is_refused_by_layer(name, way):
    sizes, alpha, rank, message = BROKEN[name]
    layers = {}
    if sizes is not None:
        layers["first"] = LayerState({n: torch.ones(s) for n, s in sizes.items()}, alpha, rank)
    refused_both(AdapterState("lora", layers), way, message)


@pytest.mark.parametrize("way", ["attach_state", "start_from"])
def test_numbers_that_are_none_are_refused(way):
    good = {"lora_down": torch.ones(2, 24), "lora_up": torch.ones(48, 2)}
    for tensor, message in (
        (good["lora_up"] * torch.nan, "not finite"),
        (good["lora_up"].char(), "int8"),
    ):
        broken = LayerState({**good, "lora_up": tensor}, 2.0, 2)
        refused_both(AdapterState("lora", {"first": broken}), way, message)


def refused_both(state, way, message):
    module = make_module()
    if way == "attach_state":
        with pytest.raises(AdapterError, match=message):
            attach_state(module, state)
        return
    adapter = attach(module, AdapterConfig(kind="lora", rank=4))
    before = [each.clone() for each in adapter.parameters()]
    with pytest.raises(AdapterError, match=message):
        start_from(module, adapter, state)
    assert all(map(torch.equal, before, adapter.parameters()))
