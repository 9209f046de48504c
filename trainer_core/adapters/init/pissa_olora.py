"""PiSSA and OLoRA: a LoRA starts at a part of the weight, and trains the difference from it.

PEFT's ``pissa`` and ``olora`` start a LoRA at B0 A0, a part of the weight W, and take that part off
the base. Here the base stays as it is. What is trained is how far the factors have moved from their
initialization, dA and dB, both from zero:

    B A - B0 A0 = (B0 + dB) (A0 + dA) - B0 A0 = [B0 + dB | dB] [dA ; A0]

A0 and B0 are frozen beside them. The gradients of dA and dB are PEFT's of A and B.

Sources: Meng et al. 2024, arXiv:2404.02948 (PiSSA); Büyükakyüz 2024, arXiv:2406.01775 (OLoRA).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ...counters import counter_seed
from ...errors import AdapterError
from ...tensors.randomized_svd import largest_singular
from ...tensors.rounding import all_finite
from ..base.dense_weight import dense_weight

if TYPE_CHECKING:
    from ..kinds.kind import Decomposition, LayerPlan

Pair = tuple[Tensor, Tensor]
"""``down [r, in]`` and ``up [out, r]``."""

FIRST_DOWN, FIRST_UP = "first_down", "first_up"
"""Names of A0 and B0 beside ``lora_down`` and ``lora_up``, which are dA and dB then."""

_DECOMPOSING = ("cpu", "cuda")
"""Kinds of devices whose decompositions are known to work."""

_NOTHING = 1e-6
"""Share of the largest singular value below which a direction is rounding."""


def principal_part(weight: Tensor, rank: int, scale: float, generator: torch.Generator) -> Pair:
    """PiSSA's initialization: the largest singular values, their roots in each of the two factors.

    Of a frozen weight `[out, in]`, float32 or wider; the rank is at most its smaller side. The
    product of the factors is multiplied by `scale`. The iteration starts at the generator, on the
    CPU. Gives lower and upper factor.

    Raises:
        AdapterError: When the weight has fewer singular values than the rank: what starts at zero
            in both factors would never learn.
    """
    left, values, right = largest_singular(weight, rank, generator)
    # Not so of a value that is not a number, which the layer's own check reports.
    if values[-1] <= _NOTHING * values[0]:
        kept = int((values > _NOTHING * values[0]).sum())
        raise AdapterError(
            f"a weight of rank {kept} for {rank} parts of an adapter",
            f"at least {rank} singular values above zero: the other parts could never learn",
            "Lower the layer's rank in adapter.rank_pattern, name it in adapter.exclude, or set "
            "adapter.init to default or olora.",
        )
    roots = (values / scale).sqrt()
    return roots[:, None] * right, left * roots


def leading_columns(weight: Tensor, rank: int, scale: float, generator: torch.Generator) -> Pair:
    """OLoRA's initialization: the first columns of Q and the first rows of R, where W = Q R.

    These columns of Q depend on the first columns of W `[out, in]` alone, and the rows of R are
    what W is in them, so that W need not be decomposed as a whole. The rank is at most its smaller
    side; PEFT's factors are the same at every scale. Gives lower and upper factor.
    """
    del scale, generator
    columns, _ = torch.linalg.qr(weight[:, :rank])
    return columns.t() @ weight, columns


def decomposable(matrix: Tensor) -> Tensor:
    """A matrix on a device whose decompositions are known to work: its own, or the CPU."""
    return matrix if matrix.device.type in _DECOMPOSING else matrix.cpu()


def joined_factors(factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write a difference from frozen factors as factors of twice the rank.

    No two large products cancel in it, so that it keeps its meaning in bf16. Of ``lora_down`` (dA
    `[r, in]`) and ``lora_up`` (dB `[out, r]`) with ``first_down`` (A0) and ``first_up`` (B0) it
    makes ``lora_down`` `[2 r, in]` and ``lora_up`` `[out, 2 r]`; without these two, nothing
    changes.
    """
    if FIRST_DOWN not in factors:
        return dict(factors)
    rest = {name: each for name, each in factors.items() if name not in (FIRST_DOWN, FIRST_UP)}
    down, up = factors["lora_down"], factors["lora_up"]
    return {
        **rest,
        "lora_down": torch.cat([down, factors[FIRST_DOWN]]),
        "lora_up": torch.cat([factors[FIRST_UP] + up, up], dim=1),
    }


def initial_pair(layer: nn.Module, plan: LayerPlan, seed: int, decompose: Decomposition) -> Pair:
    """Take a layer's initialization out of its weight, of a packed one out of its dense form.

    `decompose` says which part of the weight. Lower and upper factor are on the weight's device,
    float32 or wider; without values where the weight has none (meta).

    Raises:
        AdapterError: When the weight cannot be read, or is not finite, or too small a part of it.
    """
    weight = cast("Tensor", layer.weight)
    if weight.is_meta:
        shapes = (plan.rank, plan.inputs), (plan.outputs, plan.rank)
        return torch.empty(shapes[0], device="meta"), torch.empty(shapes[1], device="meta")
    try:
        with torch.no_grad():
            matrix = dense_weight(layer)
            matrix = matrix.detach().to(torch.promote_types(matrix.dtype, torch.float32))
            if not all_finite(matrix):
                raise AdapterError(
                    "a weight with a value that is not finite",
                    "finite weights",
                    "Load the base again; its file may be damaged.",
                )
            generator = torch.Generator().manual_seed(
                counter_seed(seed, "init", plan.name, plan.config.init)
            )
            scale = plan.alpha / plan.rank
            down, up = decompose(decomposable(matrix), plan.rank, scale, generator)
    except AdapterError as error:
        raise AdapterError(
            f"adapter.init is {plan.config.init}; {plan.name}: {error.found}",
            error.expected,
            error.remedy,
        ) from error
    return down.to(weight.device), up.to(weight.device)
