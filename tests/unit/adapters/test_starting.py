"""An attached adapter takes over the delta of another one."""

import pytest
import torch
from fixtures.small_module import config, each_kind, make_input, make_module, randomize
from fixtures.textbook import relative
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.warm_start import start_from
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError
from trainer_core.types import AdapterState


def trained(kind, **options):
    """The state of an adapter with random factors, and what the module computes with it."""
    module = make_module()
    adapter = attach(module, config(kind, **options))
    randomize(adapter)
    adapter.eval()
    return adapter.state(), module(make_input())


@each_kind
@pytest.mark.parametrize("dora", [False, True])
def test_same_settings_start_with_the_same_bits(kind, dora):
    state, expected = trained(kind, dora=dora, alpha=3.0)
    module = make_module()
    adapter = attach(module, config(kind, dora=dora, alpha=3.0), seed=9)
    before = module(make_input())
    start = start_from(module, adapter, state)
    assert torch.equal(module(make_input()), expected)
    assert not torch.allclose(before, expected, rtol=0.1)
    assert (start.taken, start.resized, start.missing) == (tuple(state.layers), {}, ())
    for name, layer in adapter.state().layers.items():
        given = state.layers[name]
        assert (layer.rank, layer.alpha) == (given.rank, given.alpha)
        assert all(torch.equal(layer.tensors[n], given.tensors[n]) for n in given.tensors)
    assert all(parameter.requires_grad for parameter in adapter.parameters())


@each_kind
def test_rank_and_alpha_are_the_attached_adapters(kind):
    state, expected = trained(kind, alpha=3.0)
    module = make_module()
    adapter = attach(module, AdapterConfig(kind=kind, rank=3, alpha=1.5))
    plain = adapter.state()
    start = start_from(module, adapter, state)
    assert relative(module(make_input()), expected) < 1e-6
    assert all(error == 0.0 for error in start.resized.values())
    after = adapter.state()
    for name, layer in after.layers.items():
        assert (layer.rank, layer.alpha) == (plain.layers[name].rank, plain.layers[name].alpha)


def test_smaller_rank_reports_the_error_that_it_made():
    state, _ = trained("lora", rank_pattern={"0": 6, "2.0": 4})
    module = make_module()
    adapter = attach(module, AdapterConfig(kind="lora", rank=3, rank_pattern={"2.0": 4}))
    start = start_from(module, adapter, state)
    assert start.taken == ("2.0",)
    (name,) = start.resized
    old = state.layers[name].tensors
    lost = relative(adapter.delta_weight(name), old["lora_up"] @ old["lora_down"])
    assert start.resized[name] == pytest.approx(lost, rel=1e-5)
    assert lost > 0.05
    assert f"worst {lost:.2g} at {name}" in start.summary()
    assert "1 layers as they are" in start.summary()


@each_kind
def test_layers_that_the_file_lacks_start_as_usual(kind):
    state, _ = trained(kind)
    part = AdapterState(kind, {"0": state.layers["0"]})
    module = make_module()
    adapter = attach(module, config(kind), seed=4)
    fresh = adapter.state()
    start = start_from(module, adapter, part)
    assert (start.taken, start.missing) == (("0",), ("2.0",))
    assert "1 that it lacks start untrained (2.0, ...)" in start.summary()
    after = adapter.state().layers["2.0"].tensors
    assert all(torch.equal(after[n], t) for n, t in fresh.layers["2.0"].tensors.items())
    assert adapter.delta_weight("0").any()


@pytest.mark.parametrize("axis", ["input", "output"])
@each_kind
def test_dora_from_a_file_without_starts_at_its_output(kind, axis):
    state, expected = trained(kind)
    module = make_module(torch.float32)
    adapter = attach(module, config(kind, dora=True, dora_axis=axis))
    start_from(module, adapter, state)
    assert relative(module(make_input()), expected) < 1e-6
    # With the base's own lengths it would be another output.
    other = attach(make_module(), config(kind, dora=True, dora_axis=axis)).named_parameters()
    own, lengths = dict(adapter.named_parameters()), "dora_scale"
    with torch.no_grad():
        for name, each in other:
            own[name].copy_(each if name.endswith(lengths) else own[name])
    assert relative(module(make_input()), expected) > 1e-3


def refused(state, match, **options):
    module = make_module()
    adapter = attach(module, AdapterConfig(**options))
    before = adapter.state()
    with pytest.raises(AdapterError, match=match) as caught:
        start_from(module, adapter, state)
    assert caught.value.expected
    assert caught.value.remedy
    after = adapter.state()
    for name, layer in before.layers.items():
        assert all(torch.equal(after.layers[name].tensors[n], t) for n, t in layer.tensors.items())


def test_another_kind_is_refused():
    refused(trained("loha")[0], "an adapter of kind loha", kind="lora", rank=2)


def test_layers_that_are_not_adapted_are_named():
    state, _ = trained("lora")
    match = r"1 layers of the file are not adapted: 2\.0"
    refused(state, match, kind="lora", rank=2, targets=["0"])


def test_another_base_is_refused():
    state, _ = trained("lora")
    swapped = {"0": state.layers["2.0"], "2.0": state.layers["2.0"]}
    match = r"0 is 8 x 20 in the file"
    refused(AdapterState("lora", swapped), match, kind="lora", rank=2)


def test_tucker_core_of_another_rank_is_refused():
    found = []
    for rank in (2, 3):
        options = {"kind": "lora", "rank": rank, "targets": ["0"], "tucker": True}
        module = nn.Sequential(nn.Conv2d(8, 12, 3))
        found.append((module, attach(module, AdapterConfig(**options))))
        randomize(found[-1][1])
    (same, adapter), other = found
    start_from(same, adapter, adapter.state())
    with pytest.raises(AdapterError, match=r"start_from: 0: adapter\.tucker"):
        start_from(*other, adapter.state())
