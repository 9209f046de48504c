"""The lowest loss on held-out images so far: where the adapter is best, and when to end.

It is part of a checkpoint, so that a run that goes on decides as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import RunConfig

MEASURED_BY = frozenset(
    {
        "dataset.validation.most",
        "dataset.validation.noise_levels",
        "training.ema.decay",
        "training.ema.previews",
        "training.loss",
        "training.sigma",
    }
)
"""Settings, or their sections, on which the number depends: losses before and after a change of one
are not compared."""

_NAME = "validation.best"
_EXACT = 2**53
"""Whole numbers below it are exact in float64."""


def measured_by(config: RunConfig) -> int:
    """A number that stands for how a run measures the loss, from 1.

    What nobody has set is no part of it: a setting that is new in a later version changes nothing.

    Args:
        config: The run file.
    """
    given: dict[str, Any] = {}
    for path in sorted(MEASURED_BY):
        found: Any = config.model_dump(mode="json", exclude_defaults=True)
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        given[path] = found
    text = json.dumps(given, sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") % (_EXACT - 1) + 1


class BestLoss:
    """The lowest loss on held-out images, and how often in a row it was missed since.

    Args:
        way: What `measured_by` gave. Losses that were measured in another way are not compared.

    Attributes:
        step: Steps made when it was measured; 0 before the first measurement.
        loss: The lowest one; infinite before the first measurement.
        misses: Measurements in a row behind it that were not lower.
    """

    def __init__(self, way: int = 0) -> None:
        self._way = way
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.step, self.loss, self.misses = 0, float("inf"), 0

    def take(self, step: int, loss: float) -> None:
        """Compare a measurement with the lowest one.

        Args:
            step: Steps made, at least 1: without any there is no adapter that could be best.
            loss: On held-out images; finite.
        """
        if loss < self.loss:
            self.step, self.loss, self.misses = step, loss, 0
        else:
            self.misses += 1

    def ends(self, patience: int) -> bool:
        """Whether it was missed too often.

        Args:
            patience: ``training.early_stop``; 0 never ends.
        """
        return 0 < patience <= self.misses

    def record(self) -> dict[str, Any] | None:
        """Step and loss as ``run.json`` keeps them; None before the first measurement."""
        return {"step": self.step, "loss": self.loss} if self.step else None

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; nothing before the first measurement."""
        values = [self.step, self.loss, self.misses, self._way]
        return {_NAME: torch.tensor(values, dtype=torch.float64)} if self.step else {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave; without it, or measured in another way, begin anew."""
        self.forget()
        if _NAME not in tensors:
            return
        step, loss, misses, *way = tensors[_NAME].tolist()
        # Earlier versions did not keep the way.
        if not way or way[0] == self._way:
            self.step, self.loss, self.misses = int(step), loss, int(misses)
