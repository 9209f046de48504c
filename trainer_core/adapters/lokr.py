"""LoKr: the delta is a Kronecker product, of which either factor may be low-rank."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .convolution import Window
from .factorization import factorize
from .fused import Branch, Factors, Gradients, Operands, Widened, like
from .kind import Kind, LayerPlan, scaled, uniform_by_inputs
from .magnitude import Axis

_WIDEST = 256
"""Columns up to which the low-rank form is computed in one product with the base."""


def split(plan: LayerPlan) -> tuple[tuple[int, int], tuple[int, int]]:
    """Sizes of the two factors: (first, second) of the outputs and of the inputs.

    The first factor is the smaller one, but for the outputs of an unbalanced factorisation.
    """
    small, large = factorize(plan.outputs, plan.config.factor)
    outputs = (large, small) if plan.config.unbalanced else (small, large)
    return outputs, factorize(plan.inputs, plan.config.factor)


def keeps_second_whole(plan: LayerPlan) -> bool:
    """Whether the second factor is one tensor instead of a low-rank product."""
    (_, out_second), (_, in_second) = split(plan)
    return plan.config.full_matrix or plan.rank >= max(out_second, in_second) / 2


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, ...]]:
    config, rank, kernel = plan.config, plan.rank, plan.kernel
    (out_first, out_second), (in_first, in_second) = split(plan)
    splits_first = (
        config.decompose_both and not config.full_matrix and rank < max(out_first, in_first) / 2
    )
    shapes: dict[str, tuple[int, ...]] = {}
    if splits_first:
        shapes |= {"lokr_w1_a": (out_first, rank), "lokr_w1_b": (rank, in_first)}
    else:
        shapes["lokr_w1"] = (out_first, in_first)
    if keeps_second_whole(plan):
        shapes["lokr_w2"] = (out_second, in_second, *kernel)
    elif plan.tucker:
        shapes["lokr_t2"] = (rank, rank, *kernel)
        shapes |= {"lokr_w2_a": (rank, out_second), "lokr_w2_b": (rank, in_second)}
    else:
        columns = in_second * math.prod(kernel)
        shapes |= {"lokr_w2_a": (out_second, rank), "lokr_w2_b": (rank, columns)}
    return shapes


def _scale(factors: Factors, alpha: float, rank: int) -> float:
    # Readers find the rank in the low-rank part; where there is none, they take a scale of 1.
    if "lokr_w1" in factors and "lokr_w2" in factors:
        return 1.0
    return alpha / rank


def _first(factors: Factors) -> Tensor:
    if "lokr_w1" in factors:
        return factors["lokr_w1"]
    return factors["lokr_w1_a"] @ factors["lokr_w1_b"]


def _second(factors: Factors) -> Tensor:
    if "lokr_w2" in factors:
        return factors["lokr_w2"]
    return factors["lokr_w2_a"] @ factors["lokr_w2_b"]


def _delta(factors: Factors, scale: float) -> Tensor:
    return torch.kron(_first(factors) * scale, _second(factors))


def _apply(x: Tensor, factors: Factors, scale: float) -> Tensor:
    """Compute x @ kron(w1, w2).T, where w1 mixes the groups of x and w2 works in each group."""
    mix = scaled(_first(factors), scale, x.dtype)
    groups = x.unflatten(-1, (mix.shape[1], -1))
    if "lokr_w2" not in factors:
        hidden = F.linear(groups, factors["lokr_w2_b"].to(x.dtype))
        mixed = torch.matmul(mix, hidden)
        return F.linear(mixed, factors["lokr_w2_a"].to(x.dtype)).flatten(-2)
    second = factors["lokr_w2"].to(x.dtype)
    # The mix reads and writes whole activations, so it goes to the narrower side.
    if mix.shape[1] * second.shape[1] <= mix.shape[0] * second.shape[0]:
        return F.linear(torch.matmul(mix, groups), second).flatten(-2)
    return torch.matmul(mix, F.linear(groups, second)).flatten(-2)


def _convolve(window: Window, x: Tensor, factors: Factors, scale: float) -> Tensor:
    """The same with blocks of channels: w1 mixes the blocks of x and w2 walks over each."""
    mix = scaled(_first(factors), scale, x.dtype)
    if "lokr_w2" not in factors:
        hidden = window.slide(x, factors["lokr_w2_b"].to(x.dtype))
        mixed = _mixed(mix, hidden).flatten(0, 1)
        blocks = window.combine(mixed, factors["lokr_w2_a"].to(x.dtype))
        return blocks.reshape(x.shape[0], -1, *blocks.shape[2:])
    second = factors["lokr_w2"].to(x.dtype)
    # The convolution costs most, so that it goes over fewer blocks.
    if mix.shape[0] <= mix.shape[1]:
        mixed = _mixed(mix, x.unflatten(1, (mix.shape[1], -1)))
        return window.slide(mixed.flatten(1, 2), second).flatten(1, 2)
    return _mixed(mix, window.slide(x, second)).flatten(1, 2)


def _mixed(mix: Tensor, blocks: Tensor) -> Tensor:
    """``[a, c]`` times the blocks of channels ``[B, c, ...]``: ``[B, a, ...]``."""
    return torch.matmul(mix, blocks.flatten(2)).unflatten(2, blocks.shape[2:])


def _operands(factors: Factors) -> Operands:
    """The first factor whole, then the second one or its two parts."""
    if "lokr_w2" in factors:
        return (_first(factors), factors["lokr_w2"])
    return (_first(factors), factors["lokr_w2_a"], factors["lokr_w2_b"])


def _add_output(x: Tensor, y: Tensor, operands: Operands, scale: float) -> Operands:
    first, *second = operands
    mix = scaled(first, scale, x.dtype)
    if len(second) == 2:
        up, down = (part.to(x.dtype) for part in second)
        mixed = torch.matmul(mix, _reduced(x, down, mix.shape[1]))
        y.view(-1, up.shape[0]).addmm_(mixed.view(-1, up.shape[1]), up.t())
        return ()
    whole = second[0].to(x.dtype)
    groups = x.view(-1, mix.shape[1], whole.shape[1])
    if x.shape[1] <= y.shape[1]:
        mixed = torch.matmul(mix, groups)
        y.view(-1, whole.shape[0]).addmm_(mixed.view(-1, whole.shape[1]), whole.t())
    else:
        y.view(-1, mix.shape[0], whole.shape[0]).add_(torch.matmul(mix, groups @ whole.t()))
    return ()


def _columns(operands: Operands) -> int:
    if len(operands) == 2:
        return 0
    columns = operands[0].shape[1] * operands[1].shape[1]
    return columns if columns <= _WIDEST else 0


def _widen(x: Tensor, operands: Operands, scale: float) -> Widened:
    first, up, down = operands
    reduced = _reduced(x, down.to(x.dtype), first.shape[1]).flatten(1)
    return reduced, torch.kron(first * scale, up).to(x.dtype), ()


def _reduced(x: Tensor, down: Tensor, groups: int) -> Tensor:
    """`[T, groups, rank]`: every group of the input times the second factor's lower part."""
    return (x.view(-1, down.shape[1]) @ down.t()).view(-1, groups, down.shape[0])


def _add_gradients(
    g: Tensor,
    x: Tensor,
    x_gradient: Tensor | None,
    operands: Operands,
    kept: Operands,
    scale: float,
) -> Gradients:
    del kept
    rule = _low_rank_gradients if len(operands) == 3 else _whole_gradients
    return like(rule(g, x, x_gradient, operands, scale), operands)


def _low_rank_gradients(
    g: Tensor, x: Tensor, x_gradient: Tensor | None, operands: Operands, scale: float
) -> Gradients:
    first, second_up, second_down = operands
    mix = scaled(first, scale, g.dtype)
    up, down = second_up.to(g.dtype), second_down.to(g.dtype)
    # The hidden values are made again: they cost less than keeping them.
    hidden = _reduced(x, down, mix.shape[1])
    mixed = torch.matmul(mix, hidden)
    g_groups = g.view(-1, up.shape[0])
    of_mixed = (g_groups @ up).view(mixed.shape)
    of_hidden = torch.matmul(mix.t(), of_mixed)
    if x_gradient is not None:
        x_gradient.view(-1, down.shape[1]).addmm_(of_hidden.view(-1, down.shape[0]), down)
    return (
        _mix_gradient(of_mixed, hidden, first) * scale,
        g_groups.t() @ mixed.view(-1, up.shape[1]),
        of_hidden.view(-1, down.shape[0]).t() @ x.view(-1, down.shape[1]),
    )


def _whole_gradients(
    g: Tensor, x: Tensor, x_gradient: Tensor | None, operands: Operands, scale: float
) -> Gradients:
    first, second = operands
    mix, whole = scaled(first, scale, g.dtype), second.to(g.dtype)
    groups = x.view(-1, mix.shape[1], whole.shape[1])
    g_groups = g.view(-1, mix.shape[0], whole.shape[0])
    if x.shape[1] <= g.shape[1]:
        mixed = torch.matmul(mix, groups).view(-1, whole.shape[1])
        rows = g_groups.view(-1, whole.shape[0])
        of_second = rows.t() @ mixed
        of_mixed = (rows @ whole).view(-1, mix.shape[0], whole.shape[1])
        of_first = _mix_gradient(of_mixed, groups, first)
        if x_gradient is not None:
            _add_product(x_gradient.view(groups.shape), mix.t(), of_mixed)
    else:
        inner = groups @ whole.t()
        of_first = _mix_gradient(g_groups, inner, first)
        of_inner = torch.matmul(mix.t(), g_groups).view(-1, whole.shape[0])
        of_second = of_inner.t() @ groups.reshape(-1, whole.shape[1])
        if x_gradient is not None:
            x_gradient.view(-1, whole.shape[1]).addmm_(of_inner, whole)
    return of_first * scale, of_second


def _add_product(target: Tensor, mix: Tensor, values: Tensor) -> None:
    """Add ``mix @ values[t]`` to ``target[t]`` for each of the T rows."""
    if target.dtype in (torch.float32, torch.float64) and target.device.type == "cpu":
        # There torch multiplies small matrices in batches several times slower.
        target.add_(torch.matmul(mix, values))
    else:
        target.baddbmm_(mix.expand(target.shape[0], -1, -1), values)


def _mix_gradient(left: Tensor, right: Tensor, first: Tensor) -> Tensor:
    """Sum of ``left[t] @ right[t].T`` over the T rows: `[a, n]` and `[c, n]` to `[a, c]`."""
    if left.shape[1] * right.shape[1] <= left.shape[2]:
        products = torch.bmm(left, right.transpose(1, 2))
        return products.sum(dim=0, dtype=torch.promote_types(products.dtype, first.dtype))
    rows, columns = (each.transpose(0, 1).flatten(1) for each in (left, right))
    return (rows @ columns.t()).to(first.dtype)


def _overlap(weight: Tensor, factors: Factors, axis: Axis) -> tuple[Tensor, Tensor]:
    """Contract the weight, cut into blocks of the second factor's size, factor by factor."""
    first, second = _first(factors), _second(factors)
    if axis == "input":
        weight, first, second = weight.t(), first.t(), second.t()
    blocks = weight.reshape(first.shape[0], second.shape[0], first.shape[1], second.shape[1])
    inner = torch.einsum("abcd,bd->abc", blocks, second.to(weight.dtype)).to(first.dtype)
    squared = torch.outer(first.square().sum(dim=1), second.square().sum(dim=1))
    return torch.einsum("abc,ac->ab", inner, first).flatten(), squared.flatten()


LOKR = Kind(
    name="lokr",
    factor_names=(
        "lokr_w1",
        "lokr_w1_a",
        "lokr_w1_b",
        "lokr_w2",
        "lokr_w2_a",
        "lokr_w2_b",
        "lokr_t2",
    ),
    shapes=_shapes,
    initializers={
        "lokr_w1": uniform_by_inputs,
        "lokr_w1_a": uniform_by_inputs,
        "lokr_w1_b": uniform_by_inputs,
        "lokr_w2_a": uniform_by_inputs,
        "lokr_t2": uniform_by_inputs,
    },
    scale=_scale,
    delta=_delta,
    apply=_apply,
    convolve=_convolve,
    branch=Branch(_operands, _add_output, _add_gradients, _columns, _widen),
    overlap=_overlap,
)
"""delta = kron(w1, w2) * alpha / rank; scale 1 where both factors are whole.

Source: Yeh et al. 2023, arXiv:2309.14859; rules of LyCORIS 4.1.3, which ComfyUI reads.
"""
