"""What a layer changes about a weight, against its definition, and the rounding of that."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.textbook import CASES, make_plan, random_factors, relative, textbook_delta
from trainer_core.adapter_files.factors.effective_delta import effective_delta
from trainer_core.tensors.rounding import EIGHT_BIT, fitting_scale, rounded
from trainer_core.types import LayerState


def random_layer(kind, inputs, outputs, rank, options, alpha=3.0):
    plan = make_plan(kind, inputs, outputs, rank, alpha, **options)
    factors = {n: t.detach() for n, t in random_factors(plan).items()}
    return LayerState(factors, alpha, rank)


@pytest.mark.parametrize(("kind", "inputs", "outputs", "rank", "options"), CASES)
def test_without_lengths_it_is_the_delta(kind, inputs, outputs, rank, options):
    layer = random_layer(kind, inputs, outputs, rank, options)
    weight = torch.randn(outputs, inputs, dtype=torch.float64)
    expected = textbook_delta(kind, layer.tensors, 3.0, rank)
    assert relative(effective_delta(kind, layer, weight), expected) < 1e-12


@pytest.mark.parametrize("axis", ["input", "output"])
@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_with_lengths_rows_or_columns_have_them(kind, axis):
    layer = random_layer(kind, 12, 20, 2, {})
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(20, 12, generator=generator, dtype=torch.float64)
    shape = (1, 12) if axis == "input" else (20, 1)
    lengths = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    layer = LayerState({**layer.tensors, "dora_scale": lengths}, layer.alpha, layer.rank)
    total = weight + effective_delta(kind, layer, weight)
    assert torch.allclose(total.norm(dim=0 if axis == "input" else 1, keepdim=True), lengths)
    plain = weight + textbook_delta(kind, layer.tensors, 3.0, 2)
    directions = plain / plain.norm(dim=0 if axis == "input" else 1, keepdim=True)
    assert relative(total, directions * lengths) < 1e-12
    # The norm of the weight alone, which ComfyUI takes on the output axis, is another.
    alone = plain / weight.norm(dim=0 if axis == "input" else 1, keepdim=True) * lengths
    assert relative(total, alone) > 0.01


def test_a_convolutions_column_is_all_places_of_its_window():
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(6, 4, 3, 3, generator=generator, dtype=torch.float64)
    tensors = {
        "lora_down": torch.randn(2, 4, 3, 3, generator=generator, dtype=torch.float64),
        "lora_up": torch.randn(6, 2, 1, 1, generator=generator, dtype=torch.float64),
    }
    delta = torch.einsum("or,rikl->oikl", tensors["lora_up"][..., 0, 0], tensors["lora_down"])
    change = effective_delta("lora", LayerState(tensors, 2.0, 2, (3, 3)), weight)
    assert relative(change, delta) < 1e-12
    for shape, axes in (((1, 4, 1, 1), (0, 2, 3)), ((6, 1, 1, 1), (1, 2, 3))):
        lengths = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
        layer = LayerState({**tensors, "dora_scale": lengths}, 2.0, 2, (3, 3))
        total = weight + delta
        norm = total.square().sum(dim=axes, keepdim=True).sqrt()
        expected = lengths * total / norm - weight
        assert relative(effective_delta("lora", layer, weight), expected) < 1e-12


def steps_of(dtype):
    numbers = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype).float()
    return torch.unique(numbers[torch.isfinite(numbers)])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(EIGHT_BIT), st.floats(-1e6, 1e6, width=32), st.integers(0, 2**32 - 1))
def test_chance_rounds_to_the_step_below_or_above(dtype, value, seed):
    steps = steps_of(dtype)
    found = rounded(torch.tensor([value]), dtype, torch.Generator().manual_seed(seed)).float()
    inside = torch.tensor([value]).clamp(steps[0], steps[-1])
    place = int(torch.bucketize(inside, steps))
    assert float(found) in {float(steps[place]), float(steps[max(place - 1, 0)])}


@pytest.mark.parametrize("dtype", EIGHT_BIT)
def test_every_step_stays_itself_and_what_is_beyond_the_last_becomes_it(dtype):
    steps = steps_of(dtype)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(rounded(steps, dtype, generator).float(), steps)
    far = torch.tensor([1e9, -1e9])
    limit = torch.finfo(dtype).max
    for chance in (None, generator):
        assert rounded(far, dtype, chance).float().tolist() == [limit, -limit]
    assert torch.isnan(rounded(torch.tensor([math.nan]), dtype).float()).all()


@pytest.mark.parametrize("dtype", EIGHT_BIT)
@pytest.mark.parametrize("value", [1.03, -0.41, 2.0**-17 * 1.3, 200.5])
def test_chance_keeps_the_mean(dtype, value):
    many = rounded(torch.full((40000,), value), dtype, torch.Generator().manual_seed(0)).float()
    step = float((many.max() - many.min()).abs())
    assert len(many.unique()) == 2
    assert float(many.mean()) == pytest.approx(value, abs=4 * step / 2 / 200)
    nearest = rounded(torch.tensor([value]), dtype).float()
    assert abs(float(nearest) - value) <= step / 2


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from((torch.float32, torch.bfloat16, torch.float16)),
    st.floats(1e-3, 300.0),
    st.floats(0.0, 100.0),
)
def test_a_fitting_scale_holds_the_weight_and_is_a_doubling(dtype, given_scale, share):
    scale = torch.tensor(given_scale).to(dtype)
    largest = share * 448.0 * scale.float()
    fitting = fitting_scale(largest, scale, EIGHT_BIT[0])
    assert fitting.dtype == dtype
    assert float(fitting) * 448.0 * (1 + 1e-5) >= float(largest)
    doublings = math.log2(float(fitting) / float(scale))
    assert doublings == round(doublings)
    assert doublings == 0 if share <= 1 else float(fitting) * 224.0 * (1 - 1e-5) <= float(largest)


def test_a_scale_of_zero_and_weights_of_zero():
    zero = torch.zeros(2, 1)
    largest = torch.tensor([[448.0], [0.0]])
    assert fitting_scale(largest, zero, EIGHT_BIT[0]).tolist() == [[1.0], [0.0]]
