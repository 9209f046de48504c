"""Products in 8 bits: against whole numbers in float64, and against the weight as it was."""

import math

import pytest
import torch
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.config import AdapterConfig
from trainer_core.quantization import eight_bit_products
from trainer_core.quantization.eight_bit_products import LEAST_ROWS, rounded_rows, takes_product
from trainer_core.quantization.formats import FORMATS
from trainer_core.quantization.fp8 import Fp8
from trainer_core.quantization.quantized_linear import QuantizedLinear
from trainer_core.quantization.rotation import WIDEST, gain, rotate, width_of

E4M3 = torch.float8_e4m3fn
IN, OUT, TOKENS = 768, 192, 32


ALL = {
    "int8": FORMATS["int8"],
    "int8_rotated": FORMATS["int8_rotated"],
    "e4m3 rows": Fp8("rows"),
    "e4m3 tensor": Fp8("tensor"),
    "e4m3 plain": Fp8("none"),
}
each_format = pytest.mark.parametrize("name", ALL)
MULTIPLIED = all(takes_product(torch.zeros(16, 16, dtype=dtype)) for dtype in (torch.int8, E4M3))
pytestmark = pytest.mark.skipif(
    not MULTIPLIED, reason="oneDNN has no exact products in 8 bits for this processor"
)


def normal(*shape, seed=0, outliers=False):
    """Gaussian numbers; with outliers, one in a hundred is 20 standard deviations large."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    chosen = torch.rand(shape, generator=generator) < 0.01
    return torch.where(chosen, 20.0 * values.sign(), values) if outliers else values


def quantized(name, weight, bias=None, compute="8bit"):
    layer = QuantizedLinear(ALL[name], tuple(weight.shape), ALL[name].pack(weight), bias)
    layer.compute = compute
    return layer


def passes(layer, x, g):
    """Output and gradient of the input."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return y, torch.autograd.grad(y, x, g)[0]


def relative(found, expected):
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def written_out(rows, dtype):
    """Rows in 8 bits, as numbers in float64."""
    steps = 127 if dtype == torch.int8 else 448
    scale = rows.double().abs().amax(dim=1, keepdim=True) / steps
    values = rows.double() / scale
    return scale * (values.round() if dtype == torch.int8 else values.to(E4M3).double())


@pytest.mark.parametrize("dtype", [torch.int8, E4M3])
def test_products_that_a_processor_gets_wrong_or_has_not_are_found(dtype, monkeypatch):
    tried, multiply = eight_bit_products._tried_on_cpu.__wrapped__, eight_bit_products._multiply
    assert tried(dtype)
    monkeypatch.setattr(
        eight_bit_products, "_multiply", lambda *each: multiply(*each).clamp(max=2.0**15)
    )
    assert not tried(dtype)

    def refuse(*_):
        raise RuntimeError("could not create a primitive descriptor")

    monkeypatch.setattr(eight_bit_products, "_multiply", refuse)
    assert not tried(dtype)


@each_format
def test_both_products_are_those_of_their_whole_numbers(name):
    """int32 holds the sums of int8, float32 those of e4m3 nearly: only the scales are rounded."""
    weight, bias, g = normal(OUT, IN), normal(OUT, seed=1), normal(TOKENS, OUT, seed=3)
    layer, x = quantized(name, weight, bias), normal(TOKENS, IN, seed=2)
    y, found = passes(layer, x, g)
    kept, scale = layer.weight.double(), layer.parts().get("weight_scale", torch.ones(())).double()
    turned = rotate(x) if layer.stored.rotates else x
    values, own = rounded_rows(turned, layer.weight.dtype)
    torch.testing.assert_close(
        y.double(),
        (values.double() @ kept.t()) * own.double() * scale.view(1, -1) + bias.double(),
        rtol=1e-6,
        atol=1e-5,
    )
    values, own = rounded_rows(g * scale.view(1, -1).float(), layer.weight.dtype)
    expected = (values.double() @ kept) * own.double()
    expected = rotate(expected) if layer.stored.rotates else expected
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.int8, E4M3])
def test_rows_are_rounded_to_the_nearest(dtype):
    rows = normal(TOKENS, IN) * torch.logspace(-30, 30, TOKENS).view(-1, 1)
    values, scale = rounded_rows(rows, dtype)
    found = scale.double() * values.double()
    exact = written_out(rows, dtype)
    # Those that lie in the middle between two may go either way.
    same = (found - exact).abs() <= 1e-5 * exact.abs()
    assert same.double().mean() > 0.999
    # The GPU's kernels take no other matrix; an input may be the transposed of something.
    assert rounded_rows(rows.t().contiguous().t(), dtype)[0].is_contiguous()
    largest = values.float().abs().amax(dim=1)
    assert torch.equal(largest, torch.full_like(largest, 127.0 if dtype == torch.int8 else 448.0))


@pytest.mark.parametrize("size", [1, 3, 2, 8, 24, 32 * 3, 128 * 3, 256 * 3, 1024])
def test_rotation_is_hadamards(size):
    rows, width = normal(5, size).double(), width_of(size)
    assert size % width == 0
    assert width == WIDEST or size // width % 2 == 1
    expected = torch.zeros_like(rows)
    for start in range(0, size, width):
        for i in range(width):
            for j in range(min(width, 8)):
                sign = (-1) ** (i & j).bit_count()
                expected[:, start + j] += sign * rows[:, start + i]
    expected /= 2 ** (int(math.log2(width)) // 2)
    known = [at for at in range(size) if at % width < 8]
    torch.testing.assert_close(rotate(rows)[:, known], expected[:, known])
    torch.testing.assert_close(rotate(rotate(rows)), rows * gain(size))


@each_format
@pytest.mark.parametrize(
    ("tokens", "shape", "taken"),
    [
        (LEAST_ROWS - 1, (OUT, IN), ()),
        (TOKENS, (60, 96), ()),
        (TOKENS, (96, 100), ()),
        (1, (7, 5), ()),
        (17, (96, 64), tuple(ALL)),
        # e4m3 takes multiples of 16, and int8 of 8.
        (TOKENS, (40, 72), ("int8", "int8_rotated")),
    ],
)
def test_what_the_kernels_refuse_goes_the_dense_way(name, tokens, shape, taken):
    weight, bias = normal(*shape), normal(shape[0], seed=1)
    x, g = normal(1, tokens, shape[1], seed=2), normal(1, tokens, shape[0], seed=3)
    found = passes(quantized(name, weight, bias), x, g)
    dense = passes(quantized(name, weight, bias, "dense"), x, g)
    for value, expected in zip(found, dense, strict=True):
        assert value.shape == expected.shape
        if name in taken:
            assert 1e-3 < relative(value, expected) < 5e-2
        else:
            assert torch.equal(value, expected)


def adapted(name, compute, options, dtype=torch.float32):
    """Two layers with an adapter that is not at its first value, as a small base."""
    layers = [
        quantized(name, normal(*shape, seed=at) * 0.1, normal(shape[0], seed=9).to(dtype), compute)
        for at, shape in enumerate([(96, 64), (64, 96)])
    ]
    module = nn.Sequential(layers[0], nn.GELU(), layers[1])
    adapter = attach(module, AdapterConfig(**options), seed=3)
    return module, adapter


ADAPTERS = [
    {"kind": kind, "rank": 4, **dora}
    for kind in KINDS
    for dora in ({}, {"dora": True, "dora_axis": "input"}, {"dora": True, "dora_axis": "output"})
    if not (dora and KINDS[kind].multiplies)
]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=() if name == quick else pytest.mark.exhaustive)
        for number, options in enumerate(ADAPTERS)
        for quick in [("int8", "int8_rotated", "e4m3 rows")[number % 3]]
        for name in ("int8", "int8_rotated", "e4m3 rows")
    ],
)
def test_a_training_ends_where_the_dense_one_does(name, options):
    x, wanted = normal(TOKENS, 64, seed=5), normal(TOKENS, 64, seed=6)
    losses = {}
    for compute in ("dense", "8bit"):
        module, adapter = adapted(name, compute, options)
        optimizer = torch.optim.Adam(adapter.parameters(), lr=1e-2)
        losses[compute] = []
        for _ in range(8):
            loss = (module(x) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[compute].append(loss.item())
    dense, found = losses["dense"], losses["8bit"]
    assert found != dense
    learned = dense[0] - dense[-1]
    assert learned > 0.02
    for one, other in zip(found, dense, strict=True):
        assert abs(one - other) < 0.05 * learned + 2e-3 * other


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not KINDS[kind].multiplies])
@each_format
def test_the_factors_see_what_was_not_rounded(name, kind):
    """With the same input and gradient theirs are those of dense products, bit for bit."""
    x, g, found = normal(TOKENS, 64, seed=5), normal(TOKENS, 96, seed=6), {}
    for compute in ("dense", "8bit"):
        module = nn.Sequential(quantized(name, normal(96, 64), None, compute))
        adapter = attach(module, AdapterConfig(kind=kind, rank=4), seed=3)
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter += 0.1
        rows = x.clone().requires_grad_()
        y = module(rows)
        found[compute] = y, *torch.autograd.grad(y, [rows, *adapter.parameters()], g)
    for at, (one, other) in enumerate(zip(found["8bit"], found["dense"], strict=True)):
        assert torch.equal(one, other) == (at >= 2)
