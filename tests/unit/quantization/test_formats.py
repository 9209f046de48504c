"""Every format against numbers that are worked out here, and the layer that reads them."""

from __future__ import annotations

import pytest
import torch

from trainer_core.quantization.quantized_linear import QuantizedLinear
from trainer_core.quantization.registry import FORMATS


def rounded_rows(weight: torch.Tensor) -> torch.Tensor:
    """What 255 steps a row leave of a weight, number by number in float64."""
    rows = []
    for row in weight.double().tolist():
        step = max(map(abs, row)) / 127
        rows.append([round(value / step) * step if step else 0.0 for value in row])
    return torch.tensor(rows, dtype=torch.float64)


def test_int8_is_the_nearest_of_255_steps():
    weight = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    weight[3] = 0.0
    parts = FORMATS["int8"].pack(weight)
    found = FORMATS["int8"].dense(parts, (7, 33), torch.float64)
    torch.testing.assert_close(found, rounded_rows(weight), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FORMATS)
def test_stored_bytes_are_those_of_the_parts(name):
    parts = FORMATS[name].pack(torch.randn(64, 128))
    held = sum(part.numel() * part.element_size() for part in parts.values())
    assert held == FORMATS[name].stored_bytes((64, 128))


@pytest.mark.parametrize("name", FORMATS)
def test_layer_computes_with_the_weight_that_it_reads(name):
    weight, bias = torch.randn(64, 128), torch.randn(64)
    stored = FORMATS[name]
    layer = QuantizedLinear(stored, (64, 128), stored.pack(weight), bias)
    x = torch.randn(3, 5, 128, requires_grad=True)
    y = layer(x)
    dense = layer.dense(torch.float32)
    assert torch.equal(y, torch.nn.functional.linear(x, dense, bias))
    gradient = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, gradient)
    torch.testing.assert_close(found, gradient @ dense)


@pytest.mark.parametrize("name", FORMATS)
def test_moving_to_a_dtype_leaves_what_is_stored(name):
    stored = FORMATS[name]
    layer = QuantizedLinear(stored, (64, 128), stored.pack(torch.randn(64, 128)), torch.randn(64))
    before = {part: value.clone() for part, value in layer.parts().items()}
    layer.to(torch.bfloat16)
    assert layer.bias.dtype == torch.bfloat16
    assert all(torch.equal(value, before[part]) for part, value in layer.parts().items())
    assert layer.dense(torch.float32).dtype == torch.float32
