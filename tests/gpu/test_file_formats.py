"""Packed weights, and products in 8 bits, are the same numbers on CUDA as on the CPU."""

import pytest
import torch
from fixtures.gguf_files import random_blocks

from tests.gpu.memory import without_waits
from trainer_core.quantization.block_scaled import Mxfp8, Nvfp4
from trainer_core.quantization.eight_bit_products import takes_product
from trainer_core.quantization.formats import FORMATS
from trainer_core.quantization.gguf_blocks import GGUF_FORMATS
from trainer_core.quantization.quantized_linear import QuantizedLinear
from trainer_core.quantization.rotated_integers import AsymW4A8, ConvRotW4A4, Int8Tensorwise

pytestmark = pytest.mark.gpu

F8 = torch.float8_e4m3fn
ROWS, WIDTH = 96, 512


def codes(*shape, dtype=torch.uint8):
    return torch.randint(0, 127, shape, dtype=torch.uint8).view(dtype)


def cases():
    for name, stored in GGUF_FORMATS.items():
        yield name, stored, {"weight": torch.from_numpy(random_blocks(name, ROWS, WIDTH))}
    half, scale = codes(ROWS, WIDTH // 2), torch.rand(ROWS, 1) + 0.5
    runs = (torch.rand(ROWS, WIDTH // 16) + 0.5).to(F8)
    nvfp4 = {"weight": half, "weight_scale": runs, "weight_scale_2": torch.tensor(0.3)}
    yield "nvfp4", Nvfp4(), nvfp4
    mxfp8 = {"weight": codes(ROWS, WIDTH, dtype=F8), "weight_scale": codes(ROWS, WIDTH // 32)}
    yield "mxfp8", Mxfp8(), mxfp8
    int8 = {"weight": codes(ROWS, WIDTH, dtype=torch.int8), "weight_scale": scale}
    yield "int8_tensorwise", Int8Tensorwise(), int8
    yield "int8_tensorwise rotated", Int8Tensorwise(256), int8
    packed = half.view(torch.int8)
    yield "convrot_w4a4", ConvRotW4A4(256), {"weight": packed, "weight_scale": scale}
    book = {"weight_codebook": torch.linspace(-8, 7, 16)}
    w4a8 = {"weight": packed, "weight_s_rel": runs, "weight_s_channel": scale, **book}
    yield "asym_w4a8_int8", AsymW4A8(), w4a8


CASES = {name: rest for name, *rest in cases()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_a_packed_weight_is_the_same_numbers(name, dtype):
    stored, parts = CASES[name]
    expected = stored.dense(parts, (ROWS, WIDTH), dtype)
    there = {part: value.to("cuda") for part, value in parts.items()}
    stored.dense(there, (ROWS, WIDTH), dtype)  # brings its tables
    with without_waits():
        found = stored.dense(there, (ROWS, WIDTH), dtype)
    found = found.cpu()
    if name.endswith("rotated") or name in ("convrot_w4a4", "asym_w4a8_int8"):
        # A matrix product adds up in an order of its own.
        size, exact = float(expected.abs().max()), dtype == torch.float32
        atol = size * (2e-3 if exact else 1e-2)  # TF32 may be allowed
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    else:
        assert torch.equal(found, expected)


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
        if not takes_product(layer.weight):
            pytest.skip(f"this GPU does not multiply {layer.weight.dtype}")
        rows, gradient = x.to(device).requires_grad_(), g.to(device)
        layer(rows)
        with without_waits():
            y = layer(rows)
            results.append([y, torch.autograd.grad(y, rows, gradient)[0]])
    for found, expected in zip(results[1], results[0], strict=True):
        difference = found.detach().cpu().double() - expected.detach().double()
        limit = 1e-3 if dtype == torch.float32 else 1e-2
        assert difference.norm() < limit * expected.detach().double().norm()
