"""LoHa: the delta is the elementwise product of two low-rank products."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kind import Factors, Kind, LayerPlan, normal, ratio_scale, scaled


def khatri_rao(factors: Factors) -> tuple[Tensor, Tensor]:
    """Write the delta of rank-r factors as one product of rank r^2.

    ``(A1 B1) * (A2 B2) = up @ down``, where row i of `up` is the outer product of row i of A1 and
    row i of A2, and column j of `down` that of column j of B1 and column j of B2. It is exact.

    Args:
        factors: ``hada_w1_a`` and ``hada_w2_a`` `[out, r]`, ``hada_w1_b`` and ``hada_w2_b``
            `[r, in]`.

    Returns:
        ``down`` `[r*r, in]` and ``up`` `[out, r*r]`.
    """
    first_up, second_up = factors["hada_w1_a"], factors["hada_w2_a"]
    first_down, second_down = factors["hada_w1_b"], factors["hada_w2_b"]
    up = (first_up.unsqueeze(2) * second_up.unsqueeze(1)).flatten(1)
    down = (first_down.unsqueeze(1) * second_down.unsqueeze(0)).flatten(0, 1)
    return down, up


def prefers_khatri_rao(rank: int, outputs: int, inputs: int) -> bool:
    """Whether the rank-r^2 form costs less than building the delta.

    Its forward, input gradient and factor gradients cost 6 T r^2 (in + out) operations, those of
    the built delta's weight gradient 2 T in out (T tokens).
    """
    return 3 * rank * rank * (outputs + inputs) < outputs * inputs


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, int]]:
    up, down = (plan.outputs, plan.rank), (plan.rank, plan.inputs)
    return {"hada_w1_a": up, "hada_w1_b": down, "hada_w2_a": up, "hada_w2_b": down}


def _delta(factors: Factors, scale: float) -> Tensor:
    first = factors["hada_w1_a"] @ factors["hada_w1_b"]
    return first * (factors["hada_w2_a"] @ factors["hada_w2_b"]) * scale


def _apply(x: Tensor, factors: Factors, scale: float) -> Tensor:
    outputs, rank = factors["hada_w1_a"].shape
    inputs = factors["hada_w1_b"].shape[1]
    if prefers_khatri_rao(rank, outputs, inputs):
        down, up = khatri_rao(factors)
        return F.linear(F.linear(x, down.to(x.dtype)), scaled(up, scale, x.dtype))
    return _BuiltDelta.apply(
        x,
        factors["hada_w1_a"],
        factors["hada_w1_b"],
        factors["hada_w2_a"],
        factors["hada_w2_b"],
        scale,
    )


class _BuiltDelta(torch.autograd.Function):
    """x @ delta.T that keeps only x and the factors, and builds the delta again for backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first_up: Tensor,
        first_down: Tensor,
        second_up: Tensor,
        second_down: Tensor,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(x, first_up, first_down, second_up, second_down)
        ctx.scale = scale
        delta = (first_up @ first_down) * (second_up @ second_down) * scale
        return F.linear(x, delta.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, first_up, first_down, second_up, second_down = ctx.saved_tensors
        output_gradient = gradients[0]
        first = first_up @ first_down
        second = (second_up @ second_down) * ctx.scale
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = output_gradient @ (first * second).to(output_gradient.dtype)
        rows = output_gradient.reshape(-1, output_gradient.shape[-1])
        delta_gradient = (rows.T @ x.reshape(-1, x.shape[-1])).to(first.dtype)
        of_first = delta_gradient * second
        of_second = delta_gradient.mul_(first).mul_(ctx.scale)
        return (
            x_gradient,
            of_first @ first_down.T,
            first_up.T @ of_first,
            of_second @ second_down.T,
            second_up.T @ of_second,
            None,
        )


LOHA = Kind(
    name="loha",
    factor_names=("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    shapes=_shapes,
    initializers={
        "hada_w1_a": normal(0.1),
        "hada_w1_b": normal(1.0),
        "hada_w2_b": normal(1.0),
    },
    scale=ratio_scale,
    delta=_delta,
    apply=_apply,
)
"""delta = (w1_a @ w1_b) * (w2_a @ w2_b) * alpha / rank.

Source: Hyeon-Woo et al. 2021, arXiv:2108.06098; first values as in LyCORIS 4.1.3.
"""
