"""LoKr: the delta is a Kronecker product, of which either factor may be low-rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dora_magnitude import Axis
from ..kernels.adapter_kernel import (
    AdapterKernel,
    Factors,
    Gradients,
    LowRankPath,
    Operands,
    WholeDelta,
    cast_gradients,
)
from ..kernels.convolution import Window
from .kind import (
    MOVED,
    Initializer,
    Kind,
    LayerPlan,
    low_rank_distance,
    scaled,
    squared_product,
    uniform,
    uniform_by_inputs,
)


def factorize(dimension: int, factor: int) -> tuple[int, int]:
    """Split a dimension, at least 1, into two factors ``(small, large)``, the smaller first.

    A factor that divides the dimension is taken as it is. Otherwise the search walks the divisors
    upwards, towards the most balanced split, and stops at the last one that is not above `factor`.
    -1 asks for the most balanced split.

    Source:
        LyCORIS 4.1.3, ``functional.general.factorization``.
    """
    if factor > 0 and dimension % factor == 0:
        other = dimension // factor
        return min(factor, other), max(factor, other)
    limit = dimension if factor < 0 else factor
    small, large = 1, dimension
    while small < large:
        candidate = small + 1
        while dimension % candidate != 0:
            candidate += 1
        partner = dimension // candidate
        if candidate + partner > small + large or candidate > limit:
            break
        small, large = candidate, partner
    return min(small, large), max(small, large)


_WIDEST = 256
"""Columns up to which the low-rank form is computed in one product with the base."""

_FEATURES = 0.7
"""Size of the low-rank part's initialization over a LoRA's: the smaller, the sooner Adam's steps
turn it towards the gradient."""


def factor_sizes(plan: LayerPlan) -> tuple[tuple[int, int], tuple[int, int]]:
    """Sizes of the two factors: (first, second) of the outputs and of the inputs.

    The first factor is the smaller one, but for the outputs of an unbalanced factorisation.
    """
    small, large = factorize(plan.outputs, plan.config.factor)
    outputs = (large, small) if plan.config.unbalanced else (small, large)
    return outputs, factorize(plan.inputs, plan.config.factor)


def keeps_second_whole(plan: LayerPlan) -> bool:
    """Whether the second factor is one tensor instead of a low-rank product."""
    (_, out_second), (_, in_second) = factor_sizes(plan)
    return plan.config.full_matrix or plan.rank >= max(out_second, in_second) / 2


def gradient_spread(plan: LayerPlan) -> float:
    """By how much the product follows a gradient less closely than the gradient itself.

    A gradient without structure, rearranged as the product is, has that many equal singular values,
    squared, of which the product is one. Factors that divide both sides by f have a spread of f.
    """
    (out_first, out_second), (in_first, in_second) = factor_sizes(plan)
    return math.sqrt(min(out_first, out_second) * min(in_first, in_second))


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, ...]]:
    config, rank, kernel = plan.config, plan.rank, plan.kernel
    (out_first, out_second), (in_first, in_second) = factor_sizes(plan)
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


def _columns(operands: Operands) -> int:
    if len(operands) == 2:
        return 0
    columns = operands[0].shape[1] * operands[1].shape[1]
    return columns if columns <= _WIDEST else 0


def _upper(operands: Operands, scale: float, dtype: torch.dtype) -> Operands:
    """``w1 [a, c]``, itself and transposed, and the upper part of w2 transposed."""
    mix = scaled(operands[0], scale, dtype)
    return mix, mix.t(), operands[1].to(dtype).t()


def _add_up(hidden: Tensor, y: Tensor, upper: Operands) -> None:
    """Mix the groups of ``hidden [rank, T * c]``, then take each to the outputs.

    As c stands last, one product with w1 mixes the groups of all rows.
    """
    _, mix, up = upper
    rank, width = up.shape
    mixed = hidden.view(-1, mix.shape[0]) @ mix
    y.view(-1, width).addmm_(_columns_of(mixed, rank), up)


def _columns_of(mixed: Tensor, rank: int) -> Tensor:
    """``[rank * T, a]`` as ``[T * a, rank]``."""
    rows = mixed.numel() // rank
    return mixed.as_strided((rows, rank), (1, rows))


def _mix(mix: Tensor, groups: Tensor) -> Tensor:
    """``[a, c]`` times each of ``[T, c, n]``: ``[T, a, n]``."""
    return torch.bmm(mix.expand(groups.shape[0], -1, -1), groups)


def _augment(hidden: Tensor, operands: Operands, scale: float) -> tuple[Tensor, Tensor]:
    up = torch.kron(operands[0] * scale, operands[1]).to(hidden.dtype)
    groups = hidden.view(hidden.shape[0], -1, operands[0].shape[1]).permute(1, 2, 0)
    return groups.reshape(-1, up.shape[1]), up


def _up_gradients(
    g: Tensor, hidden: Tensor, upper: Operands, operands: Operands, scale: float
) -> tuple[Tensor, list[Tensor | None]]:
    mix, turned, up = upper
    rank, width = up.shape
    g = g.as_strided((width, g.numel() // width), (1, width))
    groups = hidden.view(-1, mix.shape[1])
    of_mixed = (up @ g).view(-1, mix.shape[0])
    of_first = (of_mixed.t() @ groups).to(operands[0].dtype)
    if scale != 1.0:
        of_first = of_first * scale
    of_up = (g @ _columns_of(groups @ turned, rank)).to(operands[1].dtype)
    return (of_mixed @ mix).view(hidden.shape), [of_first, of_up, None]


def _add_whole(x: Tensor, y: Tensor, operands: Operands, scale: float) -> None:
    mix, whole = scaled(operands[0], scale, x.dtype), operands[1].to(x.dtype)
    groups = x.view(-1, mix.shape[1], whole.shape[1])
    if x.shape[1] <= y.shape[1]:
        mixed = _mix(mix, groups)
        y.view(-1, whole.shape[0]).addmm_(mixed.view(-1, whole.shape[1]), whole.t())
    else:
        inner = (x.view(-1, whole.shape[1]) @ whole.t()).view(-1, mix.shape[1], whole.shape[0])
        y.view(-1, mix.shape[0], whole.shape[0]).add_(_mix(mix, inner))


def _whole_gradients(
    g: Tensor, x: Tensor, x_gradient: Tensor | None, operands: Operands, scale: float
) -> Gradients:
    mix, whole = scaled(operands[0], scale, g.dtype), operands[1].to(g.dtype)
    groups = x.view(-1, mix.shape[1], whole.shape[1])
    g_groups = g.view(-1, mix.shape[0], whole.shape[0])
    if x.shape[1] <= g.shape[1]:
        mixed = _mix(mix, groups).view(-1, whole.shape[1])
        rows = g_groups.view(-1, whole.shape[0])
        of_second = rows.t() @ mixed
        of_mixed = (rows @ whole).view(-1, mix.shape[0], whole.shape[1])
        of_first = _mix_gradient(of_mixed, groups, operands[0], scale)
        if x_gradient is not None:
            back = mix.t().expand(groups.shape[0], -1, -1)
            x_gradient.view(groups.shape).baddbmm_(back, of_mixed)
    else:
        parts = x.view(-1, whole.shape[1])
        inner = (parts @ whole.t()).view(-1, mix.shape[1], whole.shape[0])
        of_first = _mix_gradient(g_groups, inner, operands[0], scale)
        of_inner = _mix(mix.t(), g_groups).view(-1, whole.shape[0])
        of_second = of_inner.t() @ parts
        if x_gradient is not None:
            x_gradient.view(parts.shape).addmm_(of_inner, whole)
    return cast_gradients((of_first, of_second), operands)


def _mix_gradient(left: Tensor, right: Tensor, first: Tensor, scale: float) -> Tensor:
    """Sum of ``scale * left[t] @ right[t].T`` over the T rows: `[a, n]`, `[c, n]` to `[a, c]`."""
    (rows, width), columns = left.shape[1:], right.shape[1]
    # Whichever writes less: the products of all rows, or both sides with the rows in a line.
    if rows * columns <= (rows + columns) * width:
        products = torch.bmm(left, right.transpose(1, 2))
        found = products.sum(dim=0, dtype=first.dtype)
    else:
        line, other = left.transpose(0, 1).flatten(1), right.transpose(0, 1).flatten(1)
        found = (line @ other.t()).to(first.dtype)
    return found if scale == 1.0 else found * scale


_KERNEL = AdapterKernel(
    operands=_operands,
    path=LowRankPath(
        lower=(2,),
        down=lambda operands, dtype: operands[2].to(dtype),
        upper=_upper,
        add_up=_add_up,
        up_gradients=_up_gradients,
        down_gradients=lambda of_down, operands: (of_down.to(operands[2].dtype),),
        keeps_hidden=False,
    ),
    takes_path=lambda operands: len(operands) == 3,
    columns=_columns,
    augment=_augment,
    whole=WholeDelta(_add_whole, _whole_gradients),
)


def _dora_norm_terms(weight: Tensor, factors: Factors, axis: Axis) -> tuple[Tensor, Tensor]:
    """Contract the weight, cut into blocks of the second factor's size, factor by factor."""
    first, second = _first(factors), _second(factors)
    if axis == "input":
        weight, first, second = weight.t(), first.t(), second.t()
    blocks = weight.reshape(first.shape[0], second.shape[0], first.shape[1], second.shape[1])
    inner = torch.einsum("abcd,bd->abc", blocks, second.to(weight.dtype)).to(first.dtype)
    squared = torch.outer(first.square().sum(dim=1), second.square().sum(dim=1))
    return torch.einsum("abc,ac->ab", inner, first).flatten(), squared.flatten()


def _squared_norm(factors: Factors) -> Tensor:
    """That of a Kronecker product is the product of its factors'."""
    first, second = (
        factors[name].square().sum()
        if name in factors
        else squared_product(factors[f"{name}_a"], factors[f"{name}_b"])
        for name in ("lokr_w1", "lokr_w2")
    )
    return first * second


def _paced(plan: LayerPlan) -> Mapping[str, Initializer]:
    """Let a low-rank second factor learn as a LoRA of its size, and the first one repeat it.

    LyCORIS fills ``lokr_w2_a`` by the rank alone. In a layer of 3072 its numbers are 14 times what
    Adam moves them in 100 steps at 1e-4, so that their directions stay random.

    With a first factor of 1 and -1 the layer moves as far as with a LoRA. But of a gradient without
    structure one Kronecker product of factor f can follow the f-th part at most. The root of f goes
    as much further as it still follows less closely.
    """
    if plan.tucker or keeps_second_whole(plan):
        return {}
    (_, out_second), (_, in_second) = factor_sizes(plan)
    in_second *= math.prod(plan.kernel)
    size = math.sqrt(gradient_spread(plan))
    features = _FEATURES / math.sqrt(max(in_second, out_second))
    return {
        "lokr_w1": _repeating(size),
        "lokr_w1_a": _signs_in_first_column(math.sqrt(size)),
        "lokr_w1_b": _signs_in_first_row(math.sqrt(size)),
        "lokr_w2_a": uniform(features),
    }


def _repeating(size: float) -> Initializer:
    """Initializer: each number is +size or -size, and all rows are the same but for their signs."""

    def fill(factor: Tensor, generator: torch.Generator) -> None:
        rows, columns = (_signs(length, generator) for length in factor.shape)
        torch.outer(rows, columns, out=factor).mul_(size)

    return fill


def _signs_in_first_column(size: float) -> Initializer:
    def fill(factor: Tensor, generator: torch.Generator) -> None:
        uniform(factor.shape[0] ** -0.5)(factor, generator)
        factor[:, 0] = size * _signs(factor.shape[0], generator)

    return fill


def _signs_in_first_row(size: float) -> Initializer:
    def fill(factor: Tensor, generator: torch.Generator) -> None:
        uniform_by_inputs(factor, generator)
        factor[0] = size * _signs(factor.shape[1], generator)

    return fill


def _signs(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=generator, dtype=torch.float32) * 2.0 - 1.0


def _distance(plan: LayerPlan) -> float:
    (out_first, out_second), (in_first, in_second) = factor_sizes(plan)
    in_second *= math.prod(plan.kernel)
    lycoris = math.sqrt(out_first / 3)
    if keeps_second_whole(plan):
        return lycoris * MOVED * math.sqrt(out_second * in_second)
    if plan.config.init == "lycoris":
        return plan.alpha / plan.rank * lycoris * MOVED * math.sqrt(out_second * in_second / 3)
    repeated = math.sqrt(out_first * in_first * gradient_spread(plan))
    return repeated * low_rank_distance(plan, out_second, in_second)


def _notes(plans: Sequence[LayerPlan]) -> tuple[str, ...]:
    """Say where the factors are other than the settings may let one expect."""
    config, notes = plans[0].config, []
    whole = sum(keeps_second_whole(plan) for plan in plans)
    if whole and not config.full_matrix:
        notes.append(
            f"LoKr: {whole} of {len(plans)} layers are so small that their second factor is "
            "trained whole; the rank changes nothing there."
        )
    for size in sorted({size for plan in plans for size in (plan.inputs, plan.outputs)}):
        if config.factor > 0 and size % config.factor:
            small, large = factorize(size, config.factor)
            notes.append(
                f"LoKr's factor {config.factor} does not divide {size} channels, which are split "
                f"into {small} x {large}."
            )
    return tuple(notes)


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
    paced=_paced,
    scale=_scale,
    delta=_delta,
    apply=_apply,
    convolve=_convolve,
    kernel=_KERNEL,
    dora_norm_terms=_dora_norm_terms,
    squared_norm=_squared_norm,
    crosses_groups=True,
    largest_rank=lambda plan: None,
    distance=_distance,
    spread=gradient_spread,
    notes=_notes,
)
"""delta = kron(w1, w2) * alpha / rank; scale 1 where both factors are whole.

Source: Yeh et al. 2023, arXiv:2309.14859; rules of LyCORIS 4.1.3, which ComfyUI reads.
"""
