"""Delta, and both forms of forward and gradients, against textbook torch in float64."""

import math

import pytest
import torch
from fixtures.tables import table
from fixtures.textbook import CASES, make_plan, random_factors, relative, textbook_delta
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_core.adapters.kernels.fused_linear import make_fused_function
from trainer_core.adapters.kinds.lokr import factorize
from trainer_core.adapters.kinds.registry import KINDS

TOLERANCE = 1e-12
CANCELLED = 1e3
FUSED = {name: make_fused_function(kind.kernel) for name, kind in KINDS.items()}


@pytest.mark.parametrize("alpha", [None, 0.7])
@pytest.mark.parametrize(("kind", "inputs", "outputs", "rank", "options"), CASES)
def test_delta_forward_and_gradients_equal_the_textbook(
    kind, inputs, outputs, rank, options, alpha
):
    plan = make_plan(kind, inputs, outputs, rank, alpha, **options)
    assert_equals_textbook(plan, (3, 5), seed=1)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["lora", "loha", "lokr"]),
    inputs=st.integers(1, 48),
    outputs=st.integers(1, 48),
    rank=st.integers(1, 6),
    alpha=st.floats(0.1, 10.0),
    factor=st.sampled_from([-1, 2, 3, 5, 8]),
    flags=st.tuples(st.booleans(), st.booleans()),
    batch=st.sampled_from([(), (1,), (4,), (2, 3), (2, 1, 3), (0, 4)]),
    seed=st.integers(0, 10**6),
)
def test_any_shape_equals_the_textbook(
    kind, inputs, outputs, rank, alpha, factor, flags, batch, seed
):
    rank = rank if kind == "lokr" else min(rank, inputs, outputs)
    plan = make_plan(
        kind,
        inputs,
        outputs,
        rank,
        alpha,
        factor=factor,
        full_matrix=flags[0],
        decompose_both=flags[1],
    )
    assert_equals_textbook(plan, batch, seed)


def assert_equals_textbook(plan, batch, seed):
    kind = KINDS[plan.config.kind]
    factors = random_factors(plan, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(*batch, plan.inputs, generator=generator, dtype=torch.float64)
    x.requires_grad_(True)
    gradient = torch.randn(*batch, plan.outputs, generator=generator, dtype=torch.float64)
    scale = kind.scale(factors, plan.alpha, plan.rank)

    reference = textbook_delta(kind.name, factors, plan.alpha, plan.rank)
    assert reference.shape == (plan.outputs, plan.inputs)
    assert relative(kind.delta(factors, scale), reference) < TOLERANCE

    leaves = [x, *factors.values()]
    weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((plan.outputs, plan.inputs), (plan.outputs,))
    )

    def fused(offset):
        operands = kind.kernel.operands(factors)
        return FUSED[kind.name].apply(x, None, weight, offset, scale, *[None] * 4, *operands)

    nothing = torch.zeros_like(weight)
    for y, base in (
        (kind.apply(x, factors, scale), nothing),
        (fused(None), weight),
        (fused(bias) - bias, weight),
    ):
        expected_y, expected = textbook_pass(plan, x, factors, gradient, base)
        size_y, sizes = textbook_pass(plan, *absolute(x, factors, gradient), base.abs())
        found = [y, *torch.autograd.grad(y, leaves, gradient)]
        all_sizes = [size_y + bias.abs(), *sizes]
        for value, wanted, size in zip(found, [expected_y, *expected], all_sizes, strict=True):
            assert value.shape == wanted.shape
            # Sums that cancel have an error of the size of what was added up.
            norm = max(wanted.norm(), size.norm() / CANCELLED)
            assert float((value - wanted).detach().norm()) <= TOLERANCE * float(norm.detach())


def textbook_pass(plan, x, factors, gradient, base):
    """Output, and the gradients of the input and the factors."""
    weight = base + textbook_delta(plan.config.kind, factors, plan.alpha, plan.rank)
    y = torch.einsum("...i,oi->...o", x, weight)
    return y, torch.autograd.grad(y, [x, *factors.values()], gradient)


def absolute(x, factors, gradient):
    positive = {
        name: factor.detach().abs().requires_grad_(True) for name, factor in factors.items()
    }
    return x.detach().abs().requires_grad_(True), positive, gradient.abs()


LOKR_SHAPES = table(__file__, "lokr_shapes")


@pytest.mark.parametrize(("rank", "options", "expected"), LOKR_SHAPES)
def test_lokr_shapes_follow_the_rule(rank, options, expected):
    plan = make_plan("lokr", 3072, 12288, rank, **options)
    found = KINDS["lokr"].shapes(plan)
    assert {name: list(shape) for name, shape in found.items()} == expected


@pytest.mark.parametrize(("kind", "inputs", "outputs", "rank", "options"), CASES)
def test_first_values_make_the_delta_exactly_zero(kind, inputs, outputs, rank, options):
    plan = make_plan(kind, inputs, outputs, rank, **options)
    factors = KINDS[kind].initial_factors(plan, seed=3)
    assert not KINDS[kind].delta(factors, 1.0).any()
    # Exactly one factor is zero: more would have no gradient to start from.
    assert sum(not factor.any() for factor in factors.values()) == 1


def test_first_values_have_the_spread_of_lycoris():
    loha = KINDS["loha"].initial_factors(make_plan("loha", 400, 300, 50, init="lycoris"), seed=0)
    assert loha["hada_w1_a"].std().item() == pytest.approx(0.1, rel=0.05)
    assert loha["hada_w1_b"].std().item() == pytest.approx(1.0, rel=0.05)
    assert loha["hada_w2_b"].std().item() == pytest.approx(1.0, rel=0.05)
    lora = KINDS["lora"].initial_factors(make_plan("lora", 400, 300, 50), seed=0)
    assert lora["lora_down"].abs().max().item() == pytest.approx(1 / 20, rel=0.01)
    assert lora["lora_down"].abs().max().item() <= 1 / 20
    lokr = KINDS["lokr"].initial_factors(
        make_plan("lokr", 3600, 3600, 10, decompose_both=True, init="lycoris"), seed=0
    )
    assert lokr["lokr_w1_a"].shape == (60, 10)
    for name, columns in (("lokr_w1_a", 10), ("lokr_w1_b", 60), ("lokr_w2_a", 10)):
        assert lokr[name].abs().max().item() == pytest.approx(columns**-0.5, rel=0.02)


@given(st.integers(1, 5000), st.integers(-1, 200))
def test_every_split_is_exact_and_sorted(dimension, factor):
    small, large = factorize(dimension, factor)
    assert small * large == dimension
    assert 1 <= small <= large
    if factor > 0 and dimension % factor:
        assert small <= factor
    if factor > 0 and dimension % factor == 0:
        assert factor in (small, large)
    divisors = [each for each in range(1, math.isqrt(dimension) + 1) if dimension % each == 0]
    assert factorize(dimension, -1) == (divisors[-1], dimension // divisors[-1])


@pytest.mark.parametrize(("inputs", "outputs", "rank"), [(48, 96, 4), (5, 3, 2), (64, 64, 32)])
def test_a_loha_has_twice_the_parameters_of_a_lora(inputs, outputs, rank):
    lora, loha = (
        sum(
            each.numel()
            for each in KINDS[kind]
            .initial_factors(make_plan(kind, inputs, outputs, rank), 0)
            .values()
        )
        for kind in ("lora", "loha")
    )
    assert loha == 2 * lora == 2 * rank * (inputs + outputs)
