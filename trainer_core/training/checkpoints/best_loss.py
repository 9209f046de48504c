"""`BestLoss`: the lowest loss on held-out images: where the adapter is best, and early stopping.

It is part of a checkpoint, so that a run that goes on decides as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...config import RunConfig

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

_NAME, _BASE = "validation.best", "validation.base"
_NONE_YET = sys.float_info.max
"""Above every loss, and finite: a checkpoint takes no other number."""
_EXACT = 2**53
"""Whole numbers below it are exact in float64."""


def measured_by(config: RunConfig) -> int:
    """A number that stands for how a run measures the loss, from 1.

    What nobody has set is not part of it: a setting that is new in a later version changes nothing.
    """
    facts: dict[str, Any] = {}
    for path in sorted(MEASURED_BY):
        found: Any = config.model_dump(mode="json", exclude_defaults=True)
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        facts[path] = found
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") % (_EXACT - 1) + 1


class BestLoss:
    """The lowest loss on held-out images, and how often in a row it was missed since.

    Args:
        way: What `measured_by` gave. Losses that were measured in another way are not compared.

    Attributes:
        step: Steps made when it was measured; 0 before the first measurement.
        loss: The lowest one; infinite before the first measurement.
        misses: Scheduled measurements in a row that were not below the lowest scheduled one.
        measured_step: Steps made at the last measurement.
        base: The loss before the first step; infinite where it is not known.
    """

    def __init__(self, way: int = 0) -> None:
        self._way = way
        self.forget()

    def forget(self, measured: int = 0) -> None:
        """Begin anew.

        Args:
            measured: Steps made, behind which nothing is to be measured any more.
        """
        self.step, self.loss, self.misses = 0, float("inf"), 0
        self.measured_step = measured
        self.base = float("inf")
        self._scheduled = _NONE_YET

    @property
    def known(self) -> bool:
        """Whether there was a measurement."""
        return self.step > 0

    def add(self, step: int, loss: float, *, scheduled: bool = True) -> None:
        """Compare a measurement with the lowest one.

        Args:
            step: Steps made, at least 1: without any there is no adapter that could be best.
            loss: On held-out images; finite.
            scheduled: Whether every run measures behind this step; one that is made only because
                somebody ends the run here may be the lowest, and is not a miss.
        """
        self.measured_step = step
        if scheduled:
            lower = loss < self._scheduled
            self._scheduled, self.misses = (
                (loss, 0) if lower else (self._scheduled, self.misses + 1)
            )
        if loss < self.loss:
            self.step, self.loss = step, loss

    def set_base(self, loss: float) -> None:
        """Keep the finite loss before the first step, to compare the end of a run with."""
        self.base = loss

    def stop_due(self, patience: int) -> bool:
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
        values = [self.step, self.loss, self.misses, self._scheduled, self.measured_step, self._way]
        found = {_NAME: values} if self.known else {}
        if self.base < float("inf"):
            found[_BASE] = [self.base, self._way]
        return {name: torch.tensor(each, dtype=torch.float64) for name, each in found.items()}

    def restore(self, tensors: Mapping[str, Tensor], made: int) -> None:
        """Take what `tensors` gave; without it begin anew, and where it was measured otherwise."""
        self.forget()
        if _BASE in tensors:
            base, way = tensors[_BASE].tolist()
            self.base = base if way == self._way else self.base
        if _NAME not in tensors:
            return
        step, loss, misses, scheduled, measured, way = tensors[_NAME].tolist()
        if way != self._way:
            self.forget(measured=made)
            return
        self.step, self.loss, self.misses = int(step), loss, int(misses)
        self._scheduled, self.measured_step = scheduled, int(measured)
