"""Parameter groups: each factor's learning rate and weight decay (LoRA+), and how fast it learns.

Adam moves every number by about its learning rate, whatever the gradient. How far that takes a
layer's weight follows from the factors' shapes and initialization alone; docs/decisions has the
derivation, and benchmarks/calibration.py the measured figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from ..config import AdapterConfig, OptimizerSection
from ..errors import AdapterError
from .dora_magnitude import DORA_SCALE
from .kinds.kind import LayerPlan
from .kinds.registry import FILE_RULES, KINDS, LOW_RANK
from .planning import by_pattern

if TYPE_CHECKING:
    from .attachment import AttachedAdapter


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that are updated alike.

    Attributes:
        parameters: In the adapter's order.
        rate: Multiplies the run's learning rate.
        decays: Whether weight decay applies; it does not to magnitudes, whose size is their
            meaning.
        decay: Multiplies the run's weight decay, where it applies.
    """

    parameters: tuple[nn.Parameter, ...]
    rate: float = 1.0
    decays: bool = True
    decay: float = 1.0


def parameter_groups(adapter: AttachedAdapter, settings: OptimizerSection) -> list[ParameterGroup]:
    """Sort all of an adapter's parameters into groups in a fixed order, each in one.

    By the settings' rates and decays by pattern, the magnitudes' rate, and LoRA+ (Hayou et al.
    2024, arXiv:2402.12354).

    Raises:
        AdapterError: When LoRA+ is asked for another kind, or a pattern matches no layer.
    """
    if settings.lora_plus_ratio != 1.0 and adapter.kind != "lora":
        raise AdapterError(
            f"training.optimizer.lora_plus_ratio is {settings.lora_plus_ratio} and adapter.kind is "
            f"{adapter.kind}",
            "LoRA+ only with kind lora: it speaks of the upper and the lower of two factors",
            "Leave lora_plus_ratio out, or set adapter.kind to lora.",
        )
    section = "training.optimizer"
    rates = by_pattern(adapter.names, settings.rate_pattern, f"{section}.rate_pattern")
    multiples = by_pattern(adapter.names, settings.decay_pattern, f"{section}.decay_pattern")
    by_factor = {"lora_up": settings.lora_plus_ratio, DORA_SCALE: settings.magnitude_ratio}
    sorted_by: dict[tuple[float, bool, float], list[nn.Parameter]] = {}
    for name, parameter in adapter.named_parameters():
        layer, factor = name.rsplit(".", 1)
        rate = rates.get(layer, 1.0) * by_factor.get(factor, 1.0)
        decays = factor != DORA_SCALE
        decay = multiples.get(layer, 1.0) if decays else 1.0
        sorted_by.setdefault((rate, decays, decay), []).append(parameter)
    return [ParameterGroup(tuple(found), *alike) for alike, found in sorted_by.items()]


_RATE, _WIDTH = 1e-4, 3072
"""The rate of a LoRA of rank 16 in a layer of this width; narrower layers take a higher one."""


_FAR_OFF = 10.0


def pace_notes(
    plans: Sequence[LayerPlan], rate: float, pace: float | None = 1.0
) -> tuple[str, ...]:
    """Say in a sentence each where size or learning rate are far from what suits the kind.

    Nothing when all is within a factor of ten. `pace` says how far the optimizer goes at a rate,
    over AdamW; None where the rate tells nothing.
    """
    kind = plans[0].config.kind
    rules = FILE_RULES[kind]
    likes = [_reference(plan) for plan in plans]
    suited = _RATE * _WIDTH / statistics.median(plan.width for plan in plans) / (pace or 1.0)
    # Where a narrow base is trained hard, the estimate would say nothing; so the forms are compared
    # at small steps, and the rates by their ratio.
    ahead = rate / suited / sum(_distance(like) for like in likes)
    far = sum(_distance(plan) for plan in plans) * ahead
    along = sum(_distance(plan) / KINDS[kind].spread(plan) for plan in plans) * ahead
    notes = []
    share = sum(map(_size, plans)) / sum(map(_size, likes))
    if not 1 / _FAR_OFF <= share <= _FAR_OFF:
        few = share < 1
        change = "Raise adapter.rank" if few else "Lower adapter.rank"
        if rules.splits:
            change += " or lower adapter.factor" if few else " or raise adapter.factor"
        notes.append(
            f"This {kind} has about {sum(map(_size, plans)) // len(plans)} parameters per layer, "
            f"{max(share, 1 / share):.0f} times as {'few' if few else 'many'} as a LoRA of rank "
            f"16. {change}."
        )
    if pace is None:
        return tuple(notes)
    at = f"At training.optimizer.learning_rate {rate:g} this {kind}"
    if along < 1 / _FAR_OFF:
        factor = ", or lower adapter.factor" if rules.splits else ""
        notes.append(
            f"{at} will learn about {1 / along:.0f} times more slowly than a LoRA of rank 16 at "
            f"{suited:.1g}. Raise the learning rate{factor}."
        )
    elif rate > _FAR_OFF * suited and far > _FAR_OFF:
        notes.append(
            f"{at} will move the weights about {far:.0f} times as far as a LoRA of rank 16 at "
            f"{suited:.1g}. Lower the learning rate unless the images stay good."
        )
    return tuple(notes)


def _reference(plan: LayerPlan) -> LayerPlan:
    rank = min(16, plan.outputs, plan.width)
    return replace(
        plan,
        rank=rank,
        alpha=float(rank),
        config=AdapterConfig.model_validate({"kind": LOW_RANK}),
        outline=None,
    )


def _size(plan: LayerPlan) -> int:
    return sum(math.prod(shape) for shape in KINDS[plan.config.kind].factor_shapes(plan).values())


def _distance(plan: LayerPlan) -> float:
    return KINDS[plan.config.kind].distance(plan)
