"""Which parameters of an adapter learn how fast, and which of them decay."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..config import OptimizerSection
from ..errors import AdapterError
from .attached import AttachedAdapter
from .dora import DORA_SCALE
from .planning import by_pattern


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that are updated alike.

    Attributes:
        parameters: In the adapter's order.
        rate: Multiplies the run's learning rate.
        decays: Whether weight decay applies.
    """

    parameters: tuple[nn.Parameter, ...]
    rate: float = 1.0
    decays: bool = True


def parameter_groups(adapter: AttachedAdapter, settings: OptimizerSection) -> list[ParameterGroup]:
    """Sort an adapter's parameters into groups.

    Args:
        adapter: The adapter.
        settings: Learning rates by pattern, and LoRA+ (Hayou et al. 2024, arXiv:2402.12354).

    Returns:
        Groups in a fixed order, whose parameters are all of the adapter's, each once.

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
    setting = "training.optimizer.rate_pattern"
    rates = by_pattern(adapter.names, settings.rate_pattern, setting)
    sorted_by: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in adapter.named_parameters():
        layer, factor = name.rsplit(".", 1)
        rate = rates.get(layer, 1.0)
        rate *= settings.lora_plus_ratio if factor == "lora_up" else 1.0
        sorted_by.setdefault((rate, factor != DORA_SCALE), []).append(parameter)
    return [
        ParameterGroup(tuple(parameters), rate, decays)
        for (rate, decays), parameters in sorted_by.items()
    ]
