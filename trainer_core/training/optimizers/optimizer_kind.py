"""What there is to know of an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...config import OptimizerSection

Groups = Sequence[dict[str, Any]]
"""Torch's groups of parameters: ``params``, ``lr``, ``rate``, ``weight_decay``, and
``magnitudes``: whether they are DoRA's."""

StateBytes = Callable[[Sequence[int]], float]
"""The shape of a factor to the bytes of its state on the device."""

LARGE = 100_000
"""From so many numbers on bitsandbytes keeps the state of a factor in pages."""

PACKED = 4096
"""From so many numbers on a state is kept in fewer bits."""


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """An optimizer, as the run file names it.

    Attributes:
        build: Settings and groups to a torch optimizer over them, in the same order.
        state_bytes: What it keeps for a factor whatever its settings are; see `kept_bytes`.
        beta1_moment: Whether it keeps a mean gradient, in fp32, only where ``beta1`` is not 0.
        package: What has to be importable besides torch; empty for nothing.
        pace: How far it goes at a learning rate, over AdamW; None where the rate tells nothing.
        pretended: Whether its update runs on tensors that have sizes alone.
        starts_at_zero: Whether a new state is all zeros, so that one may be made beforehand.
    """

    build: Callable[[OptimizerSection, Groups], torch.optim.Optimizer]
    state_bytes: StateBytes
    package: str = ""
    pace: float | None = 1.0
    pretended: bool = False
    starts_at_zero: bool = False
    beta1_moment: bool = False

    def kept_bytes(self, shape: Sequence[int], settings: OptimizerSection) -> float:
        """What it keeps for a factor of a shape, in bytes on the device."""
        moment = 4.0 * math.prod(shape) if self.beta1_moment and settings.beta1 else 0.0
        return self.state_bytes(shape) + moment
