"""What DoRA does besides its equation, which `test_convolutions` compares for Linears too."""

import pytest
import torch
from fixtures.convolutions import textbook_weight
from fixtures.small_module import OPTIONS
from fixtures.textbook import relative
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.dora_magnitude import DORA_SCALE
from trainer_core.config import AdapterConfig

AXES = ("input", "output")


def make(options, axis, inputs=24, outputs=16, bias=True, dtype=torch.float64, seed=0, spread=0.3):
    """A Linear with an adapter whose every factor was moved away from its initialization."""
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(inputs, outputs, bias=bias).to(torch.float64))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    module.to(dtype)
    adapter = attach(module, AdapterConfig(dora=True, dora_axis=axis, **options), seed=seed)
    with torch.no_grad():
        for parameter in adapter.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += spread * noise.to(parameter.dtype)
    return module, adapter


@pytest.mark.parametrize("axis", AXES)
def test_a_row_without_direction_keeps_finite_gradients(axis):
    module, adapter = make(OPTIONS[0], axis)
    adapter.detach()
    with torch.no_grad():
        module[0].weight[3] = 0.0
        module[0].weight[:, 5] = 0.0
    adapter = attach(module, AdapterConfig(dora=True, dora_axis=axis, kind="lora", rank=3))
    module(torch.randn(4, 24, dtype=torch.float64)).square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in adapter.parameters())
    lengths = next(p for name, p in adapter.named_parameters() if name.endswith(DORA_SCALE))
    assert int((lengths.grad == 0).sum()) == 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_length_of_a_row_of_zeros_learns_once_the_row_has_a_direction(options, bias):
    module, _ = make(options, "output", bias=bias)
    with torch.no_grad():
        module[0].get_base_layer().weight[3] = 0.0
    plain = nn.Sequential(module[0].get_base_layer())
    adapter = attach(plain, AdapterConfig(dora=True, dora_axis="output", **options))
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            if not name.endswith(DORA_SCALE):
                parameter += 0.3 * torch.ones_like(parameter).cumsum(0)
    lengths = plain[0].factors()[DORA_SCALE]
    assert float(lengths[3]) == 0.0
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = nn.functional.linear(
        x, textbook_weight(plain, adapter), plain[0].get_base_layer().bias
    )
    expected = torch.autograd.grad(wanted.square().sum() + wanted.sum(), lengths)[0]
    y = plain(x)
    found = torch.autograd.grad(y.square().sum() + y.sum(), lengths)[0]
    assert abs(float(expected[3])) > 1e-3
    assert relative(found, expected) < 1e-10


@pytest.mark.parametrize("axis", AXES)
def test_a_skipped_adapter_leaves_the_base_alone_lengths_included(axis):
    module, adapter = make({"kind": "lora", "rank": 2, "module_dropout": 0.5}, axis)
    x = torch.randn(3, 24, dtype=torch.float64)
    adapter.eval()
    base, whole = module[0].get_base_layer()(x), module(x)
    adapter.train()
    torch.manual_seed(0)
    outputs = [module(x) for _ in range(20)]
    skipped = [y for y in outputs if torch.equal(y, base)]
    assert 0 < len(skipped) < 20
    assert all(torch.equal(y, base) or relative(y, whole) < 1e-12 for y in outputs)
    gradients = torch.autograd.grad(skipped[0].sum(), adapter.parameters())
    assert not any(each.any() for each in gradients)
