"""Every format against numbers that are worked out here, and the layer that reads them."""

import itertools

import pytest
import torch

from trainer_core.quantization.formats import FORMATS
from trainer_core.quantization.quantized_linear import QuantizedLinear


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


def eight_bit_floats() -> list[float]:
    """Every number of 1 sign, 4 exponent and 3 fraction bits, by its definition."""
    small = [fraction / 8 * 2.0**-6 for fraction in range(8)]
    large = [
        (1 + fraction / 8) * 2.0 ** (exponent - 7)
        for exponent, fraction in itertools.product(range(1, 16), range(8))
        if (exponent, fraction) != (15, 7)  # not a number
    ]
    return [sign * value for sign in (1, -1) for value in (*small, *large)]


def test_fp8_is_the_nearest_of_its_numbers():
    weight = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    weight[2] = 0.0
    parts = FORMATS["fp8"].pack(weight)
    found = FORMATS["fp8"].dense(parts, (5, 40), torch.float64)
    numbers = torch.tensor(eight_bit_floats(), dtype=torch.float64)
    for row, scale, read in zip(weight.double(), parts["weight_scale"], found, strict=True):
        assert float(scale) == pytest.approx(float(row.abs().max()) / 448, rel=2**-8)
        nearest = (row[:, None] - numbers * float(scale)).abs().amin(dim=1)
        torch.testing.assert_close((read - row).abs(), nearest, rtol=1e-6, atol=1e-9)


def nearest_levels(weight: torch.Tensor) -> torch.Tensor:
    """Each number's nearest level in its block of 64, in float64."""
    levels = torch.tensor(NORMAL_QUANTILES, dtype=torch.float64)
    blocks = weight.double().reshape(-1, 64)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    places = ((blocks / largest)[..., None] - levels).abs().argmin(dim=-1)
    return (levels[places] * largest).view(weight.shape)


# From the appendix of the paper on QLoRA, which prints the sixteen numbers.
NORMAL_QUANTILES = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453]
NORMAL_QUANTILES += [-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0]
NORMAL_QUANTILES += [0.07958029955625534, 0.16093020141124725, 0.24611230194568634]
NORMAL_QUANTILES += [0.33791524171829224, 0.44070982933044434, 0.5626170039176941]
NORMAL_QUANTILES += [0.7229568362236023, 1.0]


def test_nf4_is_the_nearest_of_sixteen_levels():
    weight = torch.randn(6, 160, generator=torch.Generator().manual_seed(0))
    found = FORMATS["nf4"].dense(FORMATS["nf4"].pack(weight), (6, 160), torch.float64)
    torch.testing.assert_close(found, nearest_levels(weight), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 64), torch.float32),
        ((96, 1600), torch.bfloat16),
        ((96, 1600), torch.float16),
        ((65, 64 * 1100), torch.bfloat16),  # more blocks than are worked on at once
    ],
)
def test_nf4_is_what_bitsandbytes_makes_bit_for_bit(shape, dtype):
    functional = pytest.importorskip("bitsandbytes.functional")
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(shape, generator=generator) * 0.02).to(dtype)
    weight[1], weight[:, 7] = 0.0, weight[:, 7] * 30
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", blocksize=64)
    parts = FORMATS["nf4"].pack(weight)
    assert torch.equal(parts["weight"].view(-1), packed.view(-1))
    assert torch.equal(parts["absmax"].view(-1), state.absmax)
    for wanted in (torch.float32, torch.bfloat16, torch.float16):
        state.dtype = wanted
        theirs = functional.dequantize_4bit(packed, state)
        assert torch.equal(FORMATS["nf4"].dense(parts, shape, wanted), theirs)


def nearest_of_a_range(weight: torch.Tensor, largest: int) -> torch.Tensor:
    """Each group of 64 of a row on whole steps from its least to its greatest number, and on 0."""
    groups = weight.double().reshape(-1, 64)
    low, high = groups.amin(dim=1).clamp(max=0), groups.amax(dim=1).clamp(min=0)
    rows = []
    for group, least, greatest in zip(groups.tolist(), low.tolist(), high.tolist(), strict=True):
        step = (greatest - least) / largest or 1.0
        zero = round(-least / step)
        codes = [min(max(round(value / step) + zero, 0), largest) for value in group]
        rows.append([(code - zero) * step for code in codes])
    return torch.tensor(rows, dtype=torch.float64).view(weight.shape)


@pytest.mark.parametrize(("name", "largest"), [("uint3", 7), ("uint4", 15)])
def test_unsigned_numbers_are_steps_of_the_range_of_a_group(name, largest):
    weight = torch.randn(9, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight[3], weight[5] = 0.0, weight[5].abs()
    found = FORMATS[name].dense(FORMATS[name].pack(weight), (9, 128), torch.float64)
    expected = nearest_of_a_range(weight, largest)
    # Steps are rounded to bfloat16, and so is a quotient: one that lies between two may differ.
    near = (found - expected).abs() <= 2**-7 * expected.abs() + 1e-9
    assert near.double().mean() > 0.97
    assert torch.equal(found[3], expected[3])


@pytest.mark.parametrize(("name", "largest"), [("uint3", 7), ("uint4", 15)])
@pytest.mark.parametrize("shape", [(5, 64), (96, 64 * 130)])
def test_unsigned_numbers_are_what_torchao_makes_bit_for_bit(name, largest, shape):
    """As accuracy-recovery adapters were fitted to; the larger weight is worked on in parts."""
    torchao = pytest.importorskip("torchao.quantization.quant_primitives")
    weight = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    weight[1], weight[:, 7] = 0.0, weight[:, 7] * 30
    ways = {"block_size": (1, 64), "quant_min": 0, "quant_max": largest}
    scale, zero = torchao.choose_qparams_affine(
        weight,
        torchao.MappingType.ASYMMETRIC,
        target_dtype=torch.uint8,
        eps=torch.finfo(torch.float32).eps,
        scale_dtype=torch.bfloat16,
        **ways,
    )
    steps = {"scale": scale, "zero_point": zero}
    codes = torchao.quantize_affine(weight, **steps, output_dtype=torch.uint8, **ways)
    theirs = torchao.dequantize_affine(
        codes, **steps, input_dtype=torch.uint8, output_dtype=torch.bfloat16, **ways
    )
    parts = FORMATS[name].pack(weight)
    assert torch.equal(FORMATS[name].dense(parts, shape, torch.bfloat16), theirs)


@pytest.mark.parametrize("name", FORMATS)
def test_moving_to_a_dtype_leaves_what_is_stored(name):
    stored = FORMATS[name]
    layer = QuantizedLinear(stored, (64, 128), stored.pack(torch.randn(64, 128)), torch.randn(64))
    before = {part: value.clone() for part, value in layer.parts().items()}
    layer.to(torch.bfloat16)
    assert layer.bias.dtype == torch.bfloat16
    assert all(torch.equal(value, before[part]) for part, value in layer.parts().items())
    assert layer.dense(torch.float32).dtype == torch.float32
    assert layer.dense().dtype == layer.precision == torch.bfloat16
