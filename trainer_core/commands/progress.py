"""How a run's progress reads: pure functions from numbers to text, and a clock for the pace."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ..types import RunResult, RunSummary, StepResult

_WINDOW = 20
_SECONDS_BETWEEN_LINES = 10.0


def bar_text(done: int, total: int, rest: str, columns: int) -> str:
    """Draw a progress bar on one line.

    Args:
        done: Finished parts.
        total: All parts, at least 1.
        rest: What stands behind the bar.
        columns: Width of the terminal in characters.

    Returns:
        At most ``columns - 1`` characters, because a full line would wrap.
    """
    share = min(max(done / max(total, 1), 0.0), 1.0)
    head, tail = f"{share:4.0%} ", f" {done}/{total} {rest}"
    size = min(30, columns - 1 - len(head) - len(tail) - 2)
    bar = f"[{'#' * int(share * size):<{size}}]" if size >= 5 else ""
    return (head + bar + tail)[: columns - 1]


def duration_text(seconds: float) -> str:
    """Write a time as ``3:07`` (minutes) or ``1:02:03`` (hours)."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def summary_text(summary: RunSummary) -> str:
    """What a run is about to do, one line for each fact."""
    samples = sum(summary.samples_per_bucket.values())
    buckets = ", ".join(f"{n} at {size}" for size, n in summary.samples_per_bucket.items())
    facts = {
        "Family": summary.family,
        "Base": summary.base,
        "Device": f"{summary.device}, {summary.precision}",
        "Adapter": summary.adapter,
        "Layers": f"{summary.layers} adapted, {summary.parameters:,} trainable parameters",
        "Samples": f"{samples} ({buckets})",
        "Steps": f"{summary.steps}",
        "Keeps": summary.preserved,
        "Folder": f"{summary.folder}",
    }
    return "\n".join(f"{name + ':':<9}{fact}" for name, fact in facts.items())


def result_text(result: RunResult) -> str:
    """Where a run left its files."""
    if result.status == "cancelled":
        lines = [f"Cancelled after step {result.step}; resume=latest goes on from there."]
    else:
        lines = [f"{result.status.capitalize()} after {result.step} steps."]
    lines.append(f"{'Folder:':<9}{result.folder}")
    lines += [f"{'Adapter:':<9}{path}" for path in result.adapters]
    lines += [f"{'Picture:':<9}{path}" for path in result.pictures]
    return "\n".join(lines)


class Pace:
    """Speed and smoothed loss of the last steps."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._losses: deque[float] = deque(maxlen=_WINDOW)

    def step_text(self, result: StepResult, steps: int) -> str:
        """Take a step in and describe it: loss, seconds a step, time left.

        The loss is the mean of the last 20 steps: single ones jump with their sigma.
        """
        self._seconds.append(result.step_seconds)
        self._losses.append(result.loss)
        pace = sum(self._seconds) / len(self._seconds)
        loss = sum(self._losses) / len(self._losses)
        left = duration_text(pace * (steps - result.step))
        return f"loss {loss:.4f}, {pace:.2f} s/step, {left} left"


class LineRate:
    """Decides which progress is worth a line in a log: the first, the last, one in ten seconds.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def due(self, done: int, total: int) -> bool:
        """Whether to print now; counts as printed when it is."""
        now = self._clock()
        if self._last is None or done >= total or now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            return True
        return False
