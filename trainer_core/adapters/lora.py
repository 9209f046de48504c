"""LoRA: the delta is a product of two low-rank matrices."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .kind import Factors, Kind, LayerPlan, ratio_scale, scaled, uniform_by_inputs


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, int]]:
    return {"lora_down": (plan.rank, plan.inputs), "lora_up": (plan.outputs, plan.rank)}


def _delta(factors: Factors, scale: float) -> Tensor:
    return factors["lora_up"] @ factors["lora_down"] * scale


def _apply(x: Tensor, factors: Factors, scale: float) -> Tensor:
    hidden = F.linear(x, factors["lora_down"].to(x.dtype))
    return F.linear(hidden, scaled(factors["lora_up"], scale, x.dtype))


LORA = Kind(
    name="lora",
    factor_names=("lora_down", "lora_up"),
    shapes=_shapes,
    initializers={"lora_down": uniform_by_inputs},
    scale=ratio_scale,
    delta=_delta,
    apply=_apply,
)
"""delta = up @ down * alpha / rank. Source: Hu et al. 2021, arXiv:2106.09685."""
