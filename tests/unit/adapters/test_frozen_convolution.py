"""A frozen convolution computes as torch's, keeps no weight, and carries every kind of adapter."""

import pytest
import torch
from fixtures.combinations import each_once, pairwise
from fixtures.tables import table
from torch import nn

from trainer_core.adapters.attachment import attach
from trainer_core.config import AdapterConfig
from trainer_core.quantization.frozen_convolution import (
    FrozenConvolution,
    convolution_input_gradient,
)


class _Frozen(FrozenConvolution):
    """Reads its weight from a packed form: as it is, but lying backwards."""

    def parts(self):
        return {"weight": self.weight}

    def dense(self, dtype=None):
        return self.weight.detach().to(dtype or self.weight.dtype)

    def product(self, x, **options):
        assert not torch.is_grad_enabled()
        return self._conv_forward(x, self.dense(x.dtype), self.bias, **options)

    def input_gradient(self, gradient, shape, **options):
        del options
        return convolution_input_gradient(self, gradient, self.dense(gradient.dtype), shape)


class Frozen1d(_Frozen, nn.Conv1d):
    pass


class Frozen2d(_Frozen, nn.Conv2d):
    pass


class Frozen3d(_Frozen, nn.Conv3d):
    pass


CLASSES = {1: (Frozen1d, nn.Conv1d), 2: (Frozen2d, nn.Conv2d), 3: (Frozen3d, nn.Conv3d)}
WALKS = table(__file__, "walks")


def pair(axes, **options):
    """A frozen convolution and torch's own, of the same numbers."""
    frozen, plain = CLASSES[axes]
    torch.manual_seed(axes)
    options = {"kernel_size": 3, "dtype": torch.float64, **options}
    known = plain(4, 6, **options).requires_grad_(False)
    ours = frozen(4, 6, **options).requires_grad_(False)
    ours.load_state_dict(known.state_dict())
    return ours, known


@pytest.mark.parametrize(("axes", "walk", "batch"), pairwise([1, 2, 3], WALKS, [(2,), ()]))
def test_it_computes_as_torchs_and_keeps_no_weight(axes, walk, batch):
    ours, known = pair(axes, **WALKS[walk])
    x = torch.randn(*batch, 4, *[7, 6, 5][:axes], dtype=torch.float64, requires_grad=True)
    kept = []

    def keep(tensor):
        kept.append(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = ours(x)
    expected = known(x)
    assert torch.equal(y, expected)
    gradient = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, gradient)
    (wanted,) = torch.autograd.grad(expected, x, gradient)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert ours.weight.untyped_storage().data_ptr() not in kept


ADAPTERS = [
    *({"kind": kind, "dora": dora} for kind in ("lora", "loha", "lokr") for dora in (False, True)),
    {"kind": "oft", "dora": False},
    {"kind": "lora", "dora": True, "dora_axis": "input"},
    {"kind": "lora", "tucker": True},
]


@pytest.mark.parametrize(("axes", "options"), each_once([1, 2], ADAPTERS))
def test_an_adapter_on_it_is_that_on_torchs(axes, options):
    results = []
    config = AdapterConfig(rank=2, alpha=2.0, **options)
    for layer in pair(axes, padding=1):
        module = nn.Sequential(layer)
        adapter = attach(module, config, ["0"], seed=3)
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        x = torch.randn(2, 4, *[7, 6][:axes], dtype=torch.float64, requires_grad=True)
        y = module(x)
        asked = [x, *adapter.parameters()]
        results.append([y, *torch.autograd.grad(y.square().sum(), asked)])
    for ours, known in zip(*results, strict=True):
        torch.testing.assert_close(ours, known, rtol=1e-10, atol=1e-10)
