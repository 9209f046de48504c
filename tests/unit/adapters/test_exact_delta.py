"""A delta far smaller than the output survives bf16 when both are one product."""

import pytest
import torch
from fixtures.textbook import relative
from torch import nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig

EXACT = [
    {"kind": "lora", "rank": 16},
    {"kind": "loha", "rank": 8},
    {"kind": "loha", "rank": 16},
    {"kind": "lokr", "rank": 16, "factor": 8},
]


def make(options, exact, width=1024, dtype=torch.bfloat16):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(width, width).to(torch.bfloat16).to(dtype))
    adapter = attach(module, AdapterConfig(exact_delta=exact, **options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module, adapter


def kept_share(module, adapter, size):
    """<y - y0, d> / <d, d> for a delta of a given size beside the base's output."""
    x = torch.randn(256, module[0].in_features, generator=torch.Generator().manual_seed(2))
    x = x.to(torch.bfloat16)
    base = module[0].get_base_layer()
    exact = nn.functional.linear(x.double(), base.weight.double(), base.bias.double())
    delta = x.double() @ adapter.delta_weight("0").double().T
    factor = size * float(exact.norm() / delta.norm())
    largest = max(adapter.parameters(), key=lambda parameter: parameter.numel())
    with torch.no_grad():
        largest.mul_(factor)
    delta = delta * factor
    change = module(x).double() - exact
    return float((change * delta).sum().detach() / delta.square().sum())


@pytest.mark.parametrize("options", EXACT)
def test_a_small_delta_is_kept(options):
    assert kept_share(*make(options, True), 1e-3) >= 0.95
    assert 0.9 <= kept_share(*make(options, True), 1e-4) <= 1.1


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("options", EXACT)
def test_output_and_gradients_are_those_of_the_default_form(options, dora):
    options = {**options, "rank": 4, "dora": dora}
    results = []
    for exact in (False, True):
        module, adapter = make(options, exact, 256, torch.float64)
        x = torch.randn(3, 5, 256, generator=torch.Generator().manual_seed(3)).double()
        leaves = [x.requires_grad_(True), *adapter.parameters()]
        # Twice before one backward pass, as in gradient accumulation.
        y = module(x) + module(2 * x)
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for exact, default in zip(*results, strict=True):
        assert relative(exact, default) < 1e-12


def test_the_weight_is_held_once_and_comes_back_to_the_last_bit():
    module, adapter = make(EXACT[0], True)
    weight = module[0].get_base_layer().weight
    before = weight.detach().clone()
    module(torch.randn(2, 1024).to(torch.bfloat16))
    assert weight.untyped_storage().nbytes() == 1024 * (1024 + 16) * 2
    assert torch.equal(weight, before)
    adapter.merge()
    assert not torch.equal(weight, before)
    adapter.unmerge()
    adapter.detach()
    assert module[0].weight is weight
    assert torch.equal(weight, before)
    assert weight.is_contiguous()
    assert weight.untyped_storage().nbytes() == 1024 * 1024 * 2
