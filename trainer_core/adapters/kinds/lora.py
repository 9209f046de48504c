"""LoRA: the delta is a product of two low-rank matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dora import Axis, low_rank_norm_terms
from ..init.decomposed import FIRST_DOWN, FIRST_UP, joined, leading_columns, principal_part
from ..kernels.adapter_kernel import (
    AdapterKernel,
    Factors,
    Gradients,
    LowRankPath,
    Operands,
)
from ..kernels.convolution import Window
from .kind import Kind, LayerPlan, ratio_scale, scaled, uniform_by_inputs


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, ...]]:
    up = {"lora_up": (plan.outputs, plan.rank, *plan.ones)}
    if plan.tucker:
        core = {"lora_mid": (plan.rank, plan.rank, *plan.kernel)}
        return {"lora_down": (plan.rank, plan.inputs, *plan.ones), **core, **up}
    return {"lora_down": (plan.rank, plan.inputs, *plan.kernel), **up}


def _delta(factors: Factors, scale: float) -> Tensor:
    factors = joined(factors)
    return factors["lora_up"] @ factors["lora_down"] * scale


def _apply(x: Tensor, factors: Factors, scale: float) -> Tensor:
    factors = joined(factors)
    hidden = F.linear(x, factors["lora_down"].to(x.dtype))
    return F.linear(hidden, scaled(factors["lora_up"], scale, x.dtype))


def _convolve(window: Window, x: Tensor, factors: Factors, scale: float) -> Tensor:
    # The lower factor is one for all groups; only the upper one has rows for each.
    hidden = window.slide(x, factors["lora_down"].to(x.dtype)).flatten(1, 2)
    return window.combine(hidden, scaled(factors["lora_up"], scale, x.dtype), window.groups)


def _operands(factors: Factors) -> Operands:
    trained = factors["lora_down"], factors["lora_up"]
    return (*trained, factors[FIRST_DOWN], factors[FIRST_UP]) if FIRST_DOWN in factors else trained


def _down(operands: Operands, dtype: torch.dtype) -> Tensor:
    """``[dA ; A0]``, or the lower factor where it is trained as it is."""
    down = operands[0]
    return (down if len(operands) == 2 else torch.cat([down, operands[2]])).to(dtype)


def _upper(operands: Operands, scale: float, dtype: torch.dtype) -> Operands:
    """``[B0 + dB | dB]``, or the upper factor."""
    up = operands[1]
    if len(operands) == 4:
        up = torch.cat([operands[3] + up, up], dim=1)
    return ((up if scale == 1.0 else up * scale).to(dtype),)


def _add_up(hidden: Tensor, y: Tensor, upper: Operands) -> None:
    y.addmm_(hidden, upper[0].t())


def _up_gradients(
    g: Tensor, hidden: Tensor, upper: Operands, operands: Operands, scale: float
) -> tuple[Tensor, list[Tensor | None]]:
    of_up = (g.t() @ hidden).to(operands[1].dtype)
    if scale != 1.0:
        of_up = of_up * scale
    if len(operands) == 2:
        return g @ upper[0], [None, of_up]
    # [B0 + dB | dB] has what is trained twice.
    rank = operands[0].shape[0]
    return g @ upper[0], [None, of_up[:, :rank] + of_up[:, rank:], None, None]


def _down_gradients(of_down: Tensor, operands: Operands) -> Gradients:
    # Of [dA ; A0] only the first half is trained.
    trained = operands[0]
    if len(operands) == 4:
        of_down = of_down[: trained.shape[0]]
    return (of_down.to(trained.dtype),)


_KERNEL = AdapterKernel(
    operands=_operands,
    path=LowRankPath(
        lower=(0,),
        down=_down,
        upper=_upper,
        add_up=_add_up,
        up_gradients=_up_gradients,
        down_gradients=_down_gradients,
    ),
    takes_path=lambda operands: True,
    columns=lambda operands: operands[0].shape[0] * len(operands) // 2,
    augment=lambda hidden, operands, scale: (hidden, *_upper(operands, scale, hidden.dtype)),
)


def _dora_norm_terms(weight: Tensor, factors: Factors, axis: Axis) -> tuple[Tensor, Tensor]:
    factors = joined(factors)
    return low_rank_norm_terms(weight, factors["lora_down"], factors["lora_up"], axis)


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
    "pissa": {},
    "olora": {},
    "eva": {"lora_down": uniform_by_inputs},
}
"""PEFT's ``gaussian``, and its ``orthogonal`` in turned coordinates; what comes from W or the data.

Those that are a part of W are trained as differences, which start at zero. Those from the layers'
inputs take the place of the usual ones once these inputs were seen (`init.eva`).

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
    kernel=_KERNEL,
    dora_norm_terms=_dora_norm_terms,
    other_initializers=_OTHER_INITIALIZERS,
    decompositions={"pissa": principal_part, "olora": leading_columns},
)
"""delta = up @ down * alpha / rank. Source: Hu et al. 2021, arXiv:2106.09685."""
