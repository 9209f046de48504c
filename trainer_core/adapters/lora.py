"""LoRA: the delta is a product of two low-rank matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .convolution import Window
from .fused import Branch, Factors, Gradients, Operands, Widened, like
from .kind import Kind, LayerPlan, ratio_scale, scaled, uniform_by_inputs
from .magnitude import Axis, low_rank_overlap


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, ...]]:
    up = {"lora_up": (plan.outputs, plan.rank, *plan.ones)}
    if plan.tucker:
        core = {"lora_mid": (plan.rank, plan.rank, *plan.kernel)}
        return {"lora_down": (plan.rank, plan.inputs, *plan.ones), **core, **up}
    return {"lora_down": (plan.rank, plan.inputs, *plan.kernel), **up}


def _delta(factors: Factors, scale: float) -> Tensor:
    return factors["lora_up"] @ factors["lora_down"] * scale


def _apply(x: Tensor, factors: Factors, scale: float) -> Tensor:
    hidden = F.linear(x, factors["lora_down"].to(x.dtype))
    return F.linear(hidden, scaled(factors["lora_up"], scale, x.dtype))


def _convolve(window: Window, x: Tensor, factors: Factors, scale: float) -> Tensor:
    # The lower factor is one for all groups; only the upper one has rows for each.
    hidden = window.slide(x, factors["lora_down"].to(x.dtype)).flatten(1, 2)
    return window.combine(hidden, scaled(factors["lora_up"], scale, x.dtype), window.groups)


def _operands(factors: Factors) -> Operands:
    return factors["lora_down"], factors["lora_up"]


def _add_output(x: Tensor, y: Tensor, operands: Operands, scale: float) -> Operands:
    down, up = operands
    hidden = x @ down.to(x.dtype).t()
    y.addmm_(hidden, scaled(up, scale, x.dtype).t())
    return (hidden,)


def _columns(operands: Operands) -> int:
    return operands[0].shape[0]


def _widen(x: Tensor, operands: Operands, scale: float) -> Widened:
    down, up = operands
    hidden = x @ down.to(x.dtype).t()
    return hidden, scaled(up, scale, x.dtype), (hidden,)


def _add_gradients(
    g: Tensor,
    x: Tensor,
    x_gradient: Tensor | None,
    operands: Operands,
    kept: Operands,
    scale: float,
) -> Gradients:
    down, up = operands
    (hidden,) = kept
    of_hidden = g @ scaled(up, scale, g.dtype)
    if x_gradient is not None:
        x_gradient.addmm_(of_hidden, down.to(g.dtype))
    return like((of_hidden.t() @ x, (g.t() @ hidden).to(up.dtype) * scale), operands)


def _overlap(weight: Tensor, factors: Factors, axis: Axis) -> tuple[Tensor, Tensor]:
    return low_rank_overlap(weight, factors["lora_down"], factors["lora_up"], axis)


def _normal_by_rank(down: Tensor, generator: torch.Generator) -> Tensor:
    return down.normal_(0.0, 1.0 / down.shape[0], generator=generator)


def _even_rows(down: Tensor, generator: torch.Generator) -> None:
    down.normal_(0.0, _ORTHOGONAL_STD, generator=generator)
    down[1::2] = 0.0


def _odd_columns(up: Tensor, generator: torch.Generator) -> None:
    up.normal_(0.0, _ORTHOGONAL_STD, generator=generator)
    up[:, 0::2] = 0.0


_ORTHOGONAL_STD = 0.1
"""PEFT's, which divides normal numbers by 10."""

_OTHER_INITIALIZERS = {
    "gaussian": {"lora_down": _normal_by_rank},
    "orthogonal": {"lora_down": _even_rows, "lora_up": _odd_columns},
}
"""PEFT's ``gaussian``, and its ``orthogonal`` in turned coordinates.

PEFT draws up = G2 Q2 and down = (G1 Q1)^T with the rows of one orthogonal matrix in Q1 and Q2:
their product is zero but for rounding. Turned by that matrix, up and down use different coordinates
of the rank: the same spans, and a product that is zero in every number format.
"""

LORA = Kind(
    name="lora",
    factor_names=("lora_down", "lora_mid", "lora_up"),
    shapes=_shapes,
    initializers={"lora_down": uniform_by_inputs, "lora_mid": uniform_by_inputs},
    scale=ratio_scale,
    delta=_delta,
    apply=_apply,
    convolve=_convolve,
    branch=Branch(_operands, _add_output, _add_gradients, _columns, _widen),
    overlap=_overlap,
    other_initializers=_OTHER_INITIALIZERS,
)
"""delta = up @ down * alpha / rank. Source: Hu et al. 2021, arXiv:2106.09685."""
