"""Other sizes for a layer's factors, against the optima of whole decompositions."""

import numpy
import pytest
import torch
from fixtures.tables import table
from fixtures.textbook import make_plan, random_factors, relative, textbook_delta
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_core.adapters.kinds.low_rank_algebra import nearest_kronecker
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.adapters.warm_start import resize
from trainer_core.errors import AdapterError
from trainer_core.types import LayerState

few = settings(max_examples=40, deadline=None)


def given_layer(plan, seed=0):
    factors = {name: t.detach() for name, t in random_factors(plan, seed).items()}
    return LayerState(factors, plan.alpha, plan.rank)


def fit(old, new, seed=0):
    """Resize random factors of one plan to another plan; also both deltas, by definition."""
    kind = old.config.kind
    layer = given_layer(old, seed)
    fresh = {n: t.double() for n, t in KINDS[kind].initial_factors(new, 1).items()}
    scale = KINDS[kind].scale(fresh, new.alpha, new.rank)
    result = resize(kind, layer, fresh, scale)
    assert {n: t.shape for n, t in result.tensors.items()} == {n: t.shape for n, t in fresh.items()}
    before = textbook_delta(kind, layer.tensors, old.alpha, old.rank)
    after = textbook_delta(kind, result.tensors, new.alpha, new.rank)
    return result, before, after


@few
@given(
    st.integers(1, 24),
    st.integers(1, 24),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 1 << 20),
)
def test_lora_reaches_the_optimum_of_eckart_and_young(outputs, inputs, old, new, seed):
    limit = min(outputs, inputs)
    old, new = min(old, limit), min(new, limit)
    result, before, after = fit(
        make_plan("lora", inputs, outputs, old, alpha=3.0),
        make_plan("lora", inputs, outputs, new, alpha=2.0),
        seed,
    )
    values = numpy.linalg.svd(before.numpy(), compute_uv=False)
    tail = numpy.sqrt((values[new:] ** 2).sum() / (values**2).sum())
    assert relative(after, before) == pytest.approx(tail, abs=1e-10)
    assert result.error == pytest.approx(tail, abs=1e-7)
    if new >= old:
        assert result.error == 0.0


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
@pytest.mark.parametrize("both", [False, True])
def test_a_larger_rank_keeps_the_delta_and_can_learn(kind, both):
    options = {"factor": 8, "decompose_both": both} if kind == "lokr" else {}
    new = make_plan(kind, 64, 96, 3, alpha=5.0, **options)
    result, before, after = fit(make_plan(kind, 64, 96, 2, alpha=7.0, **options), new)
    assert result.error == 0.0
    assert relative(after, before) < 1e-14
    leaves = {name: t.clone().requires_grad_(True) for name, t in result.tensors.items()}
    delta = textbook_delta(kind, leaves, new.alpha, new.rank)
    (delta * torch.randn(delta.shape, dtype=delta.dtype)).sum().backward()
    for name in ("lora_", "hada_w1_", "hada_w2_", "lokr_w1_", "lokr_w2_"):
        # Of each pair, the new part of one factor moves.
        parts = {n: leaf.grad for n, leaf in leaves.items() if n.startswith(name)}
        moved = [
            bool((grad[2:] if n.endswith(("down", "_b")) else grad[:, 2:]).any())
            for n, grad in parts.items()
        ]
        assert not parts or any(moved)


def test_loha_shrinks_where_it_loses_nothing_and_is_refused_elsewhere():
    large, small = (make_plan("loha", 20, 24, rank) for rank in (4, 2))
    with pytest.raises(AdapterError, match=r"loses \d.*% of its delta at rank 2"):
        fit(large, small)
    layer = given_layer(small)
    fresh = {n: t.double() for n, t in KINDS["loha"].initial_factors(large, 1).items()}
    grown = resize("loha", layer, fresh, 1.0)
    start = {n: t.double() for n, t in KINDS["loha"].initial_factors(small, 1).items()}
    back = resize("loha", LayerState(grown.tensors, 4.0, 4), start, 1.0)
    delta = KINDS["loha"].delta
    assert relative(delta(back.tensors, 1.0), delta(layer.tensors, 1.0)) < 1e-13
    assert back.error < 1e-13


@few
@given(
    st.sampled_from([(4, 6), (3, 3), (1, 5), (8, 2)]),
    st.sampled_from([(3, 4), (2, 2), (6, 1), (1, 7)]),
    st.integers(0, 1 << 20),
)
def test_nearest_kronecker_reaches_the_optimum_of_the_rearranged_matrix(first, second, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (first[0] * second[0], first[1] * second[1])
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    one, other, error = nearest_kronecker(matrix, first, second)
    # By index, with loops: shares nothing with the package.
    rearranged = numpy.array(
        [
            matrix[i * second[0] : (i + 1) * second[0], j * second[1] : (j + 1) * second[1]]
            .numpy()
            .flatten()
            for i in range(first[0])
            for j in range(first[1])
        ]
    )
    values = numpy.linalg.svd(rearranged, compute_uv=False)
    optimum = numpy.sqrt((values[1:] ** 2).sum() / (values**2).sum())
    assert relative(torch.kron(one, other), matrix) == pytest.approx(optimum, abs=1e-9)
    assert error == pytest.approx(optimum, abs=1e-9)


LOKR_CHANGES = table(__file__, "lokr_changes")


@pytest.mark.parametrize(("old", "new", "exact"), LOKR_CHANGES)
def test_lokr_reports_what_it_loses(old, new, exact):
    plans = (make_plan("lokr", 64, 48, alpha=3.0, **options) for options in (old, new))
    result, before, after = fit(*plans)
    lost = relative(after, before)
    assert result.error == pytest.approx(lost, abs=1e-12)
    assert (lost < 1e-12) is exact
    assert lost < 1.0


@pytest.mark.parametrize(
    ("old", "new"), [(2, 4), (2, -1), (4, 2), (8, 2), (8, 4), (4, -1), (4, 8), (2, 8), (-1, 4)]
)
def test_lokr_of_another_split_is_the_closest_of_all(old, new):
    """By the whole decomposition of the rearranged delta."""
    plan = make_plan("lokr", 48, 96, 1, factor=new, full_matrix=True)
    result, before, after = fit(make_plan("lokr", 48, 96, 3, factor=old), plan)
    (a, c), (b, d) = (KINDS["lokr"].shapes(plan)[name] for name in ("lokr_w1", "lokr_w2"))
    blocks = before.reshape(a, b, c, d).permute(0, 2, 1, 3).reshape(a * c, b * d)
    values = torch.linalg.svdvals(blocks)
    optimum = float((values[1:].square().sum() / values.square().sum()).sqrt())
    assert relative(after, before) == pytest.approx(optimum, abs=1e-8)
    assert result.error == pytest.approx(optimum, abs=1e-8)
    assert optimum > 0.05
