"""Adapters that are part of a base compute what merging them gives, and come out again."""

import contextlib
import copy
import dataclasses

import pytest
import torch
from torch import nn

from tests.fixtures.adapter_states import make_state
from tests.fixtures.combinations import each_once
from tests.fixtures.family_states import OPTIONS, SIZES, family_state, key_map
from trainer_core.adapter_files.factors.effective_delta import effective_delta
from trainer_core.adapter_files.factors.put_on_base import BaseAdapterFile, put_on_base
from trainer_core.adapters.base.dense_weight import weight_stamp
from trainer_core.errors import AdapterError
from trainer_core.quantization.formats import FORMATS
from trainer_core.quantization.quantized_linear import QuantizedLinear
from trainer_core.types import AdapterState, LayerState

ROWS = 5


def make_tree(sizes, dtype=torch.float32, seed=1):
    """A module with a Linear at each dotted name."""
    generator = torch.Generator().manual_seed(seed)
    root = nn.Module()
    for name, (inputs, outputs) in sizes.items():
        *path, leaf = name.split(".")
        owner = root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        linear = nn.Linear(inputs, outputs)
        for parameter in linear.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        owner.add_module(leaf, linear.to(dtype))
    return root.requires_grad_(False)


def given(state, when="training", strength=0.7):
    return BaseAdapterFile("base.adapters.0", "a.safetensors", state, strength, when)


def in_float64(state):
    layers = {
        name: LayerState({k: v.double() for k, v in layer.tensors.items()}, layer.alpha, layer.rank)
        for name, layer in state.layers.items()
    }
    return AdapterState(state.kind, layers)


def merged_weight(weight, name, *adapters):
    """The reference: every change from the base's own weight, all in float64."""
    total = weight.double()
    for adapter in adapters:
        state = in_float64(adapter.state)
        delta = effective_delta(state.kind, state.layers[name], weight.double())
        total = total + adapter.strength * delta
    return total


def relative(found, wanted):
    return float((found.detach().double() - wanted).norm() / wanted.norm())


def check_computes(layer, weight, bias, tolerance):
    """Output, gradient of the input, and weight of a layer are those of a weight in float64."""
    x = torch.randn(2, ROWS, layer.in_features, generator=torch.Generator().manual_seed(3))
    x.requires_grad_()
    y = layer(x)
    g = torch.randn_like(y)
    (of_x,) = torch.autograd.grad(y, x, g)
    assert relative(y, x.double() @ weight.t() + bias.double()) <= tolerance
    assert relative(of_x, g.double() @ weight) <= tolerance
    assert relative(layer.dense(torch.float64), weight) <= tolerance


@pytest.mark.parametrize("case", OPTIONS)
def test_a_layer_computes_what_its_merged_weight_does(case):
    tree = make_tree(SIZES["flux"])
    weights = {name: tree.get_submodule(name).weight.clone() for name in SIZES["flux"]}
    first = given(family_state("flux", case))
    second = given(family_state("flux", "lora output", seed=50), strength=-0.4)
    put = put_on_base(tree, key_map("flux"), [first, second], merge=True)
    assert put.merged == 0
    assert len(put.beside) == len(SIZES["flux"])
    for name, weight in weights.items():
        layer = tree.get_submodule(name)
        wanted = merged_weight(weight, name, first, second)
        check_computes(layer, wanted, layer.bias, 2e-6)
        assert relative(wanted, weight.double()) > 0.05
        assert torch.equal(layer.weight, weight)


@pytest.mark.parametrize("case", OPTIONS)
def test_what_stays_is_merged_and_rounded_once(case):
    tree = make_tree(SIZES["flux"], torch.bfloat16)
    weights = {name: tree.get_submodule(name).weight.clone() for name in SIZES["flux"]}
    adapter = given(family_state("flux", case), "always")
    put = put_on_base(tree, key_map("flux"), [adapter], merge=True)
    assert (put.merged, len(put.beside)) == (len(SIZES["flux"]), 0)
    for name, weight in weights.items():
        layer = tree.get_submodule(name)
        assert type(layer) is nn.Linear
        assert not layer.weight.requires_grad
        wanted = merged_weight(weight, name, adapter).to(torch.bfloat16)
        # A rounding apart where float32 and float64 lie on two sides of a middle.
        assert (layer.weight == wanted).float().mean() > 0.99


@pytest.mark.parametrize("merge", [True, False])
def test_samples_are_made_without_what_only_trains(merge):
    tree = make_tree(SIZES["flux"])
    name = "transformer_blocks.0.attn.to_q"
    weight = tree.get_submodule(name).weight.clone()
    stays = given(family_state("flux", "loha input"), "always")
    goes = given(family_state("flux", "lora output", seed=9))
    put = put_on_base(tree, key_map("flux"), [stays, goes], merge=merge)
    layer = tree.get_submodule(name)
    with_both, alone = merged_weight(weight, name, stays, goes), merged_weight(weight, name, stays)
    held, before, stamp = layer.weight, layer.weight.clone(), weight_stamp(layer)
    check_computes(layer, with_both, layer.bias, 2e-6)
    with contextlib.suppress(KeyError), put.sampling():
        check_computes(layer, alone, layer.bias, 2e-6)
        assert weight_stamp(layer) != stamp
        raise KeyError
    assert layer.weight is held
    assert torch.equal(layer.weight, before)
    assert weight_stamp(layer) == stamp
    check_computes(layer, with_both, layer.bias, 2e-6)
    assert relative(alone, with_both) > 0.05


@pytest.mark.parametrize(
    ("name", "case"), each_once(FORMATS, ["lora", "lokr output", "lora input", "oft"])
)
def test_a_weight_in_fewer_bits_keeps_its_bits(name, case):
    sizes = {"layer": (64, 96)}
    options = {**OPTIONS[case]}
    state = make_state(**{"rank": 2, **options}, alpha=3.0, seed=4, sizes=sizes)
    tree = make_tree(sizes)
    plain, stored = tree.layer, FORMATS[name]
    packed = QuantizedLinear(stored, (96, 64), stored.pack(plain.weight), plain.bias)
    tree.layer = packed
    before = {part: each.clone() for part, each in packed.parts().items()}
    own = packed.dense(torch.float64)
    adapter = given(state, "always")
    put = put_on_base(tree, key_map("flux"), [adapter], merge=True)
    assert (put.merged, len(put.beside)) == (0, 1)
    assert tree.layer is packed
    check_computes(packed, merged_weight(own, "layer", adapter), packed.bias, 3e-6)
    assert {k: v.dtype for k, v in packed.parts().items()} == {
        k: v.dtype for k, v in before.items()
    }
    assert all(torch.equal(each, before[part]) for part, each in packed.parts().items())


@pytest.mark.parametrize("wrong", ["layer", "size", "class", "extras"])
def test_what_does_not_fit_is_refused_before_anything_changes(wrong):
    tree = make_tree(SIZES["flux"])
    state = family_state("flux", "lora")
    if wrong == "layer":
        del tree.transformer_blocks
    elif wrong == "size":
        tree.proj_out = nn.Linear(12, 9)
    elif wrong == "class":
        tree.proj_out = nn.Bilinear(2, 2, 2)
    else:
        state = dataclasses.replace(state, extras={"img_in": {"diff_b": torch.zeros(12)}})
    before = copy.deepcopy(tree.state_dict())
    with pytest.raises(AdapterError) as error:
        put_on_base(tree, key_map("flux"), [given(state, "always")], merge=True)
    assert error.value.found.startswith("base.adapters.0: ")
    assert all(torch.equal(value, tree.state_dict()[key]) for key, value in before.items())
