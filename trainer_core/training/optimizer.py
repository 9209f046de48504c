"""The learning-rate schedule of a run."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..config import ScheduleSection


def make_schedule(
    settings: ScheduleSection, steps: int, anew: tuple[int, float] | None = None
) -> Callable[[int], float]:
    """Resolve the schedule once.

    With warm-up over W steps the factor of step s (counted from 1) is s / W while s <= W. After
    that it is 1, or with ``cosine``
    ``min + (1 - min) * (1 + cos(pi * (s - W - 1) / (steps - W - 1))) / 2``, which is 1 at the first
    step after the warm-up and ``min_ratio`` at the last. Planned anew after step A with factor f,
    it is ``min + (f - min) * (1 + cos(pi * (s - A - 1) / (steps - A - 1))) / 2`` from there on.

    Args:
        settings: The run file's section.
        steps: Number of optimizer steps of the whole run.
        anew: A and f of a cosine that was planned anew.

    Returns:
        Step number, from 1, to the factor in [0, 1] on the learning rate.

    Source: Loshchilov & Hutter 2017 (SGDR), eq. 5, with one period.
    """
    warmup = settings.warmup_steps

    def constant(step: int) -> float:
        return min(1.0, step / warmup) if warmup else 1.0

    def cosine(step: int) -> float:
        if step <= warmup:
            return step / warmup
        begin, top = anew if anew and step > anew[0] else (warmup, 1.0)
        progress = (step - begin - 1) / max(1, steps - begin - 1)
        swing = (1.0 + math.cos(math.pi * min(1.0, progress))) / 2.0
        return settings.min_ratio + (top - settings.min_ratio) * swing

    return {"constant": constant, "cosine": cosine}[settings.name]
