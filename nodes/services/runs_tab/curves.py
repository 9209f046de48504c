"""What a run has measured step by step, thinned, and of a run that goes on what is new alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ....trainer_core.errors import InputError
from ....trainer_core.filesystem.text_files import parse_json, read_lines, require_regular
from ....trainer_core.training.checkpoints.run_names import METRICS
from ..panel.history import POINTS

_TAIL = 2**16
"""Bytes at the end of a file in which the steps since a moment ago are looked for."""

Bucket = tuple[int, float, float, float, int]
"""Latest step, mean, lowest and highest value, and how many steps it holds."""


def _device_memory(values: dict[str, float]) -> float:
    return values["peak"] if "peak" in values else values["ram"]


CURVES: dict[str, Callable[[Any], float]] = {
    "grad_norm": float,
    "step_seconds": float,
    "norms": lambda values: sum(values.values()) / len(values),
    "memory": _device_memory,
}
"""How a number is made of what a line of metrics has under a name; the panel's state has loss and
learning rate."""


def read_curve(folder: Path, name: str, after: int, course: str) -> dict[str, Any]:
    """What was measured under a name of `CURVES`, after a step that is known already; 0 for all.

    `course` is what the last answer said, by which a file that was written anew is noticed. Gives
    ``course``; ``points``, at most `POINTS` buckets by step; ``new``, whether they follow on those
    that are known.

    Raises:
        InputError: When nothing is measured under such a name.
    """
    if name not in CURVES:
        raise InputError(
            f"{name[:40]!r} is measured in no run", f"one of {', '.join(CURVES)}", "Choose another."
        )
    path = folder / METRICS
    try:
        require_regular(path)
        facts = path.stat()
        now = f"{facts.st_dev}-{facts.st_ino}"
        new = _tail(path, name, after) if after > 0 and course == now else None
        points = _all(path, name) if new is None else new
    except (OSError, ValueError):
        return {"course": "", "points": [], "new": False}
    return {"course": now, "points": _thinned(points), "new": new is not None}


def _all(path: Path, name: str) -> list[tuple[int, float]]:
    # Not every line has it, and only those are parsed.
    found = (_point(line, name) for line in read_lines(path) if f'"{name}"' in line)
    return [each for each in found if each is not None]


def _tail(path: Path, name: str, after: int) -> list[tuple[int, float]] | None:
    """What follows on a step; None where the end of the file does not reach back to it."""
    with path.open("rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - _TAIL)
        file.seek(start)
        lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()[1 if start else 0 :]
    points = [each for line in lines if (each := _point(line, name)) is not None]
    reaches = not start or (bool(points) and points[0][0] <= after)
    # A run that went back makes steps again.
    return [each for each in points if each[0] > after] if reaches else None


def _point(line: str, name: str) -> tuple[int, float] | None:
    try:
        values = parse_json(line)
        step, value = int(values["step"]), CURVES[name](values[name])
        # JSON for a browser knows no infinity.
        return (step, value) if math.isfinite(value) else None
    except (ValueError, TypeError, LookupError, OverflowError, ArithmeticError, AttributeError):
        return None


def _thinned(points: Sequence[tuple[int, float]]) -> list[Bucket]:
    every = 1
    while len(points) / every > POINTS:
        every *= 2
    buckets: list[Bucket] = []
    for at in range(0, len(points), every):
        part = points[at : at + every]
        values = [value for _, value in part]
        mean = sum(values) / len(values)
        buckets.append((part[-1][0], mean, min(values), max(values), len(values)))
    return buckets
