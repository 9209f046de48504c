"""What stands in the loop where a run has its recorder: it takes times, or traces two steps."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, supported_activities

from trainer_core.training.observer import RunRequests, SilentObserver
from trainer_core.types import StepResult

TRACED = 3
"""Steps of a trace: one to come to rest, one that warns of waits, one that is profiled."""

KERNELS, WAITS = 30, 20
"""Lines of a trace that are kept."""

_WAITED = "called a synchronizing"
"""In torch's warning of a wait; it warns of the mode itself, too."""


class Stopwatch(SilentObserver):
    """Stands where a run has its recorder and its observer: takes times, and says when to end.

    Args:
        wait: Returns when the device has done what it was told.
        warm_up: Steps that are not timed.
        longest: Seconds after which no other step is made.
    """

    def __init__(self, wait: Callable[[], None], warm_up: int, longest: float) -> None:
        self.times: list[float] = []
        self.losses: list[float] = []
        self.last = 0.0
        self._wait, self._warm_up, self._longest = wait, warm_up, longest
        self._since = time.perf_counter()

    def record(self, result: StepResult) -> None:
        """Take the time since the last step."""
        self._wait()
        now = time.perf_counter()
        self.last = now - self._since
        self.losses.append(result.loss)
        if len(self.losses) > self._warm_up:
            self.times.append(self.last)
        self._since = time.perf_counter()

    def save(self, step: int) -> None:
        """Nothing is kept."""

    def save_before_failed_step(self, step: int, first: int) -> str:
        """Nothing is kept."""
        del first
        return f"Step {step} is not a measurement."

    @staticmethod
    def saved_on_failure(step: int) -> contextlib.AbstractContextManager[None]:
        """Nothing is kept."""
        del step
        return contextlib.nullcontext()

    def retry_due(self) -> bool:
        """Nothing is written."""
        return False

    def requests(self) -> RunRequests:
        """Ask for the end when enough was measured."""
        return RunRequests(stop=sum(self.times) > self._longest)


class TracedSteps(Stopwatch):
    """Says of one step where the host waits for the device, and of the next what is launched.

    Args:
        wait: Returns when the device has done what it was told.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__(wait, TRACED, 0.0)
        self.found: dict[str, Any] = {}
        self._warnings = warnings.catch_warnings(record=True)
        self._waits: list[warnings.WarningMessage] | None = None
        self._profile: profile | None = None

    def record(self, result: StepResult) -> None:
        """Begin or end a part of the trace after a step."""
        super().record(result)
        step = len(self.losses)
        if step == 1:
            self._waits = self._warnings.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        elif step == 2:
            self._end_warnings()
            self._profile = profile(activities=supported_activities()).__enter__()
            self._since = time.perf_counter()
        elif self._profile is not None:
            self.found["step_seconds"] = self.last
            self._profile.__exit__(None, None, None)
            self.found |= _launches(self._profile)
            self._profile = None

    def close(self) -> None:
        """End what a broken step left on."""
        self._end_warnings()
        if self._profile is not None:
            self._profile.__exit__(None, None, None)

    def _end_warnings(self) -> None:
        if self._waits is None:
            return
        torch.cuda.set_sync_debug_mode("default")
        found = Counter(_place(each) for each in self._waits if _WAITED in str(each.message))
        self.found |= {"waits": found.total(), "wait_places": found.most_common(WAITS)}
        self._warnings.__exit__(None, None, None)
        self._waits = None


def _place(warning: warnings.WarningMessage) -> str:
    return f"{'/'.join(Path(warning.filename).parts[-3:])}:{warning.lineno}"


def _launches(found: profile) -> dict[str, Any]:
    """Kernels and copies of a step by their time on the device."""
    rows = [each for each in found.key_averages() if each.device_type.name == "CUDA"]
    rows.sort(key=lambda each: -each.self_device_time_total)
    kernels = [
        {
            "name": row.key[:120],
            "count": row.count,
            "ms": round(row.self_device_time_total / 1e3, 3),
        }
        for row in rows[:KERNELS]
    ]
    return {
        "launches": sum(row.count for row in rows),
        "device_seconds": round(sum(row.self_device_time_total for row in rows) / 1e6, 4),
        "kernels": kernels,
    }
