"""LoKr: the delta is a Kronecker product, of which either factor may be low-rank."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .factorization import factorize
from .kind import Factors, Kind, LayerPlan, scaled, uniform_by_inputs


def keeps_second_whole(plan: LayerPlan) -> bool:
    """Whether the second factor is one matrix instead of a low-rank product."""
    _, out_large = factorize(plan.outputs, plan.config.factor)
    _, in_large = factorize(plan.inputs, plan.config.factor)
    return plan.config.full_matrix or plan.rank >= max(out_large, in_large) / 2


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, int]]:
    config, rank = plan.config, plan.rank
    out_small, out_large = factorize(plan.outputs, config.factor)
    in_small, in_large = factorize(plan.inputs, config.factor)
    splits_first = (
        config.decompose_both and not config.full_matrix and rank < max(out_small, in_small) / 2
    )
    shapes: dict[str, tuple[int, int]] = {}
    if splits_first:
        shapes |= {"lokr_w1_a": (out_small, rank), "lokr_w1_b": (rank, in_small)}
    else:
        shapes["lokr_w1"] = (out_small, in_small)
    if keeps_second_whole(plan):
        shapes["lokr_w2"] = (out_large, in_large)
    else:
        shapes |= {"lokr_w2_a": (out_large, rank), "lokr_w2_b": (rank, in_large)}
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


def _delta(factors: Factors, scale: float) -> Tensor:
    if "lokr_w2" in factors:
        second = factors["lokr_w2"]
    else:
        second = factors["lokr_w2_a"] @ factors["lokr_w2_b"]
    return torch.kron(_first(factors) * scale, second)


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


LOKR = Kind(
    name="lokr",
    factor_names=("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b"),
    shapes=_shapes,
    initializers={
        "lokr_w1": uniform_by_inputs,
        "lokr_w1_a": uniform_by_inputs,
        "lokr_w1_b": uniform_by_inputs,
        "lokr_w2_a": uniform_by_inputs,
    },
    scale=_scale,
    delta=_delta,
    apply=_apply,
)
"""delta = kron(w1, w2) * alpha / rank; scale 1 where both factors are whole.

Source: Yeh et al. 2023, arXiv:2309.14859; rules of LyCORIS 4.1.3, which ComfyUI reads.
"""
