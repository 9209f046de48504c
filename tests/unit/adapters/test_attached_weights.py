"""An attached adapter's weights: merged, taken off, saved, restored, refused."""

import pytest
import torch

from tests.fixtures.small_module import config, each_kind, make_input, make_module, randomize
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError
from trainer_core.types import AdapterState, LayerState


@each_kind
def test_merge_equals_the_adapter_and_unmerge_restores_every_bit(kind):
    module, x = make_module(), make_input()
    weights = {name: p.detach().clone() for name, p in module.named_parameters()}
    adapter = attach(module, config(kind, alpha=1.0))
    randomize(adapter)
    adapter.strength = 0.5
    beside = module(x)
    adapter.merge()
    torch.testing.assert_close(module(x), beside, rtol=1e-5, atol=1e-6)
    merged = adapter.layers["0"].get_base_layer().weight
    assert not torch.equal(merged, weights["0.weight"])
    adapter.merge()  # a second time changes nothing
    torch.testing.assert_close(module(x), beside, rtol=1e-5, atol=1e-6)
    with pytest.raises(AdapterError, match="merged"):
        adapter.strength = 1.0
    adapter.unmerge()
    assert torch.equal(adapter.layers["0"].get_base_layer().weight, weights["0.weight"])
    assert torch.equal(module(x), beside)


@each_kind
def test_merge_into_bfloat16_rounds_once_and_unmerges_exactly(kind):
    module = make_module(torch.bfloat16)
    weight = module[0].weight.detach().clone()
    adapter = attach(module, config(kind))
    randomize(adapter)
    expected = (weight.float() + adapter.delta_weight("0")).bfloat16()
    adapter.merge()
    assert torch.equal(adapter.layers["0"].get_base_layer().weight, expected)
    adapter.unmerge()
    assert torch.equal(adapter.layers["0"].get_base_layer().weight, weight)


@each_kind
@pytest.mark.parametrize("merged", [False, True])
def test_detach_leaves_the_module_as_it_was(kind, merged):
    module, x = make_module(), make_input()
    modules = dict(module.named_modules())
    attributes = {name: set(part.__dict__) for name, part in modules.items()}
    weights = {name: p.detach().clone() for name, p in module.named_parameters()}
    base = module(x)
    adapter = attach(module, config(kind))
    randomize(adapter)
    delta = adapter.delta_weight("0")
    if merged:
        adapter.merge()
    adapter.detach()
    assert dict(module.named_modules()).keys() == modules.keys()
    for name, part in module.named_modules():
        assert part is modules[name]
        assert set(part.__dict__) == attributes[name]
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
        assert not part._backward_hooks
    for name, p in module.named_parameters():
        assert torch.equal(p, weights[name])
    assert torch.equal(module(x), base)
    adapter.detach()  # a second time changes nothing
    assert torch.equal(adapter.delta_weight("0"), delta)
    with pytest.raises(AdapterError, match="detached"):
        adapter.merge()
    attach(module, config(kind))  # the module is free for another adapter


def test_two_adapters_on_one_module_are_refused():
    module = make_module()
    attach(module, config("lora"))
    with pytest.raises(AdapterError, match="already carries an adapter"):
        attach(module, config("lokr"))


@each_kind
def test_state_is_a_copy_and_load_state_restores_it(kind):
    module, x = make_module(), make_input()
    adapter = attach(module, config(kind, alpha=3.0))
    randomize(adapter)
    y, state = module(x), adapter.state()
    assert state.kind == kind
    assert tuple(state.layers) == adapter.names == ("0", "2.0")
    assert state.settings["rank"] == 2
    randomize(adapter, seed=8)
    assert not torch.equal(module(x), y)
    adapter.load_state(state)
    assert torch.equal(module(x), y)
    with pytest.raises(AdapterError, match=r"Nearest: 2\.0|Nearest: 0"):
        adapter.delta_weight("2.1")


def broken_states():
    state = attach(make_module(), config("lora")).state()
    layers = dict(state.layers)
    wrong = LayerState({"lora_down": torch.zeros(3, 12), "lora_up": torch.zeros(20, 3)}, 3.0, 3)
    return {
        "kind": (AdapterState("loha", layers), "kind loha"),
        "missing": (AdapterState("lora", {"0": layers["0"]}), "2.0 is only in the attached"),
        "more": (AdapterState("lora", {**layers, "9": layers["0"]}), "9 is only in the state"),
        "shape": (AdapterState("lora", {**layers, "0": wrong}), "0 has factors"),
    }


@pytest.mark.parametrize("case", ["kind", "missing", "more", "shape"])
def test_load_state_refuses_what_does_not_fit(case):
    state, message = broken_states()[case]
    adapter = attach(make_module(), config("lora"))
    randomize(adapter)
    before = adapter.state()
    with pytest.raises(AdapterError, match=message):
        adapter.load_state(state)
    for name, layer in adapter.state().layers.items():
        for factor, tensor in layer.tensors.items():
            assert torch.equal(tensor, before.layers[name].tensors[factor])


@pytest.mark.parametrize("kind", ["lora", "loha"])
def test_a_rank_above_the_layer_is_refused(kind):
    with pytest.raises(AdapterError, match=r"adapter\.rank: rank 13 for 0.*\n.*at most 12"):
        attach(make_module(), AdapterConfig(kind=kind, rank=13), ["0"])


def test_a_rank_above_the_layer_means_a_whole_factor_for_lokr():
    adapter = attach(make_module(), AdapterConfig(kind="lokr", rank=999, alpha=1.0))
    assert any("LoKr: 2 of 2 layers" in note for note in adapter.notes)
    assert set(adapter.state().layers["0"].tensors) == {"lokr_w1", "lokr_w2"}
