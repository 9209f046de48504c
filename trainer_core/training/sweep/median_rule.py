"""The median stopping rule, which ends trials of a sweep that lag behind the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..checkpoints.run_folder import METRICS
from ..metrics.metrics_file import read_metrics
from ..observer import Event, Noted, RunStarted, ValidationDone

Curve = Mapping[int, float]
"""Step to the loss on held-out images behind it."""

FEWEST = 2
"""Trials that were trained to their end before another is compared with them."""

GRACE = 1 / 3
"""Share of its steps that every trial makes: at the start losses hardly differ."""


class MedianRule:
    """Says when the trial in training lags behind the others.

    That is when its lowest loss so far is above the median of the other trials' mean losses up to
    the same step. Source: Golovin et al., Google Vizier: A Service for Black-Box Optimization, KDD
    2017, section 3.2.2. The rule depends on the measured numbers alone, so that a trial that was
    killed ends where it would have ended.

    Args:
        finished: The curves of trials that were trained to their end.
        every: ``dataset.validation.every``. Measurements between are made at a run's end alone.
    """

    def __init__(self, finished: Sequence[Curve], every: int) -> None:
        self._finished, self._every = finished, every
        self._own: dict[int, float] = {}
        self._first = 0.0

    def observe(self, event: Event) -> None:
        """Take note of what is measured, and of what was measured before a resume."""
        if isinstance(event, RunStarted):
            self._own = dict(curve_of(event.summary.folder, self._every))
            self._first = GRACE * event.summary.steps
        elif isinstance(event, ValidationDone) and event.step and event.step % self._every == 0:
            self._own[event.step] = event.loss

    def should_stop(self) -> bool:
        """Whether the trial is to end at its last measurement."""
        step = max(self._own, default=0)
        if step < max(1, self._first):
            return False
        means = [mean for each in self._finished if (mean := _mean(each, step)) is not None]
        return len(means) >= FEWEST and min(self._own.values()) > statistics.median(means)

    def note(self) -> Noted:
        """What is told of a trial that ends."""
        return Noted(
            f"The trial ends: after {max(self._own)} steps its lowest loss on held-out images, "
            f"{min(self._own.values()):.4g}, is above the median of the finished trials' means "
            "(stop_hopeless)."
        )


def _mean(curve: Curve, step: int) -> float | None:
    found = [loss for at, loss in curve.items() if at <= step]
    return statistics.fmean(found) if found else None


def curve_of(version: Path, every: int) -> Curve:
    """What a run measured at its regular steps."""
    return {
        each.step: each.validation_loss
        for each in read_metrics(version / METRICS)
        if each.validation_loss is not None and each.step % every == 0
    }
