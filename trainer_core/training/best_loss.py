"""The lowest loss on held-out images so far: where the adapter is best, and when to end.

It is part of a checkpoint, so that a run that goes on decides as one that was never stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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


class BestLoss:
    """The lowest loss on held-out images, and how often in a row it was missed since.

    Attributes:
        step: Steps made when it was measured; 0 before the first measurement.
        loss: The lowest one; infinite before the first measurement.
        misses: Measurements in a row behind it that were not lower.
    """

    def __init__(self) -> None:
        self.step, self.loss, self.misses = 0, float("inf"), 0

    @property
    def known(self) -> bool:
        """Whether there was a measurement."""
        return self.step > 0

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
        return {"step": self.step, "loss": self.loss} if self.known else None

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; nothing before the first measurement."""
        values = [self.step, self.loss, self.misses]
        return {_NAME: torch.tensor(values, dtype=torch.float64)} if self.known else {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave; without it, begin anew."""
        self.__init__()
        if _NAME in tensors:
            step, loss, misses = tensors[_NAME].tolist()
            self.step, self.loss, self.misses = int(step), loss, int(misses)
