"""Adapters under torch.autocast: the same but for bf16's rounding, and factors stay in float32."""

import pytest
import torch
from fixtures.combinations import pairwise
from fixtures.quantized_bases import INPUTS
from fixtures.small_module import DORA, attached
from fixtures.small_module import OPTIONS as SMALL
from fixtures.textbook import relative
from torch import nn

OPTIONS = [*SMALL, {"kind": "loha", "rank": 40}]
ROUNDING = 1.5e-2
"""A few roundings of bf16, whose numbers have 8 bits."""


def make_linear(dtype):
    return nn.Sequential(nn.Linear(INPUTS, 96).to(dtype))


def make_conv(dtype):
    return nn.Sequential(nn.Conv2d(INPUTS, 32, 3, padding=1).to(dtype))


def results(module, adapter, x, enabled):
    """Output, and the gradients of the input and the factors."""
    x = x.clone().requires_grad_(True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        y = module(x)
    for parameter in adapter.parameters():
        parameter.grad = None
    y.float().square().mean().backward()
    return [y, x.grad, *(parameter.grad for parameter in adapter.parameters())]


def check(module, options, x):
    adapter = attached(module, options, 0.1, ["0"])
    expected = results(module, adapter, x, False)
    found = results(module, adapter, x, True)
    assert {parameter.dtype for parameter in adapter.parameters()} == {torch.float32}
    for value, reference in zip(found[1:], expected[1:], strict=True):
        assert value.dtype == reference.dtype == torch.float32
        # A gradient sums many of the output's errors, and lengths cancel most of it.
        assert relative(value, reference) < 4 * ROUNDING
    assert relative(found[0].float(), expected[0]) < ROUNDING
    return found, expected


@pytest.mark.parametrize(
    ("options", "dora", "make"), pairwise(OPTIONS, DORA, [make_linear, make_conv])
)
def test_it_computes_the_same_but_for_rounding(options, dora, make):
    torch.manual_seed(0)
    x = torch.randn(7, INPUTS) if make is make_linear else torch.randn(2, INPUTS, 5, 5)
    if make is make_conv and options["rank"] > 32:
        options = {**options, "rank": 32}
    found, expected = check(make(torch.float32), {**options, **dora}, x)
    assert found[0].dtype == torch.bfloat16
    assert relative(found[0].float(), expected[0]) > 1e-5, "autocast was on"


@pytest.mark.parametrize("dora", DORA[1:])
@pytest.mark.parametrize("options", OPTIONS)
def test_lengths_and_deltas_are_not_rounded(options, dora):
    """What is kept or merged later comes from float32 factors as it does without autocast."""
    torch.manual_seed(0)
    module = make_linear(torch.float32)
    adapter = attached(module, {**options, **dora}, 0.1, ["0"])
    norm, delta = module[0].norm().clone(), adapter.delta_weight("0")
    twin = make_linear(torch.float32)
    twin.load_state_dict(
        {"0.weight": module[0].base_weight, "0.bias": module[0].get_base_layer().bias}
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = attached(twin, {**options, **dora}, 0.1, ["0"])
        twin(torch.randn(7, INPUTS))
        assert torch.equal(twin[0].norm(), norm)
        assert torch.equal(other.delta_weight("0"), delta)
        product = module[0].base_weight @ module[0].base_weight.t()
    assert product.dtype == torch.bfloat16, "it would have been rounded"
