"""Products in 8 bits are on a GPU what they are on the CPU."""

import pytest
import torch

from trainer_core.quantization.eight_bit_products import takes
from trainer_core.quantization.quantized_linear import QuantizedLinear
from trainer_core.quantization.registry import FORMATS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.eight_bit])
def test_products_are_those_of_the_cpu(name, dtype):
    torch.manual_seed(0)
    stored, weight, bias = FORMATS[name], torch.randn(384, 256), torch.randn(384).to(dtype)
    x, g = torch.randn(3, 33, 256).to(dtype), torch.randn(3, 33, 384).to(dtype)
    layer = QuantizedLinear(stored, (384, 256), stored.pack(weight), bias)
    layer.compute = "8bit"
    results = []
    for device in ("cpu", "cuda"):
        layer.to(device)
        if not takes(layer.weight):
            pytest.skip(f"this GPU does not multiply {layer.weight.dtype}")
        rows = x.to(device).requires_grad_()
        y = layer(rows)
        results.append([y, torch.autograd.grad(y, rows, g.to(device))[0]])
    for found, expected in zip(results[1], results[0], strict=True):
        difference = found.detach().cpu().double() - expected.detach().double()
        limit = 1e-3 if dtype == torch.float32 else 1e-2
        assert difference.norm() < limit * expected.detach().double().norm()
