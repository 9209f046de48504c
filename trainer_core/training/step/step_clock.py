"""`StepClock`: where the time of a step goes, without a wait that the step does not make anyway.

A step has four marks: its first samples are there, its gradients are computed, its numbers were
read, its update is under way. On a GPU they are events in its stream; those of a step are past when
the numbers of the next one are read, and are asked then. On a CPU they are the host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch

from ...device import Moment, knows_moments

Read = TypeVar("Read")

_PARTS = ("compute", "reduce", "update")


@dataclass(frozen=True, slots=True)
class _Step:
    """The marks of a step, and how long it waited for samples: at all, and behind the first."""

    marks: list[Moment]
    waited: float
    inside: float

    def seconds(self, *, overlaps: bool) -> dict[str, float]:
        """How long each part took; a device may compute while the host waits for samples."""
        found = {"data": self.waited}
        if len(self.marks) == len(_PARTS) + 1:
            spans = pairwise(self.marks)
            found |= {
                part: end.since(start) for part, (start, end) in zip(_PARTS, spans, strict=True)
            }
            found["compute"] -= 0.0 if overlaps else self.inside
        return found


class StepClock:
    """Called at the marks of each step.

    Args:
        device: Where it computes. On one that does not tell when it gets to a mark, only the wait
            for samples is known.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._knows = device, knows_moments(device)
        self._later = device.type != "cpu"
        self._marks: list[Moment] = []
        self._waited = self._waited_inside = 0.0
        self._before: _Step | None = None

    def waiting(self, read: Callable[[int, int], Read]) -> Callable[[int, int], Read]:
        """The same function of step and micro-batch, whose time is that of the wait for samples."""

        def timed(step: int, micro: int) -> Read:
            started = time.perf_counter()
            found = read(step, micro)
            seconds = time.perf_counter() - started
            self._waited += seconds
            if self._marks:
                self._waited_inside += seconds
            else:
                self._mark()
            return found

        return timed

    def restart(self) -> None:
        """Continue from a restored state; the marks of the last step are dropped with it."""
        self._before = None

    def start(self) -> None:
        """A step begins."""
        self._marks, self._waited, self._waited_inside = [], 0.0, 0.0

    def mark_computed(self) -> None:
        """The gradients are computed."""
        if not self._marks:  # nothing was read
            self._mark()
        self._mark()

    def _mark(self) -> None:
        if self._knows:
            self._marks.append(Moment(self._device))

    mark_numbers_read = _mark
    """The step's numbers were read from the device."""

    mark_updated = _mark
    """The step's update is under way."""

    def take(self) -> dict[str, float] | None:
        """Seconds of the last step's parts.

        Returns:
            ``data``, and ``compute``, ``reduce`` and ``update`` where they are known. On a GPU
            those of the step before; None where there is none.
        """
        now = _Step(self._marks, self._waited, self._waited_inside)
        if not self._later:
            return now.seconds(overlaps=False)
        # This step has waited, so that the device is past all marks of the one before.
        before, self._before = self._before, now
        return None if before is None else before.seconds(overlaps=True)
