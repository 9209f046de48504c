"""How the learning rate changes over a run: a factor on the highest rate for each step.

Every schedule that falls is a curve from 1, at the first step behind the warm-up, to 0, at the last
step of the run; ``min_ratio`` lifts it. A run that is made longer takes the same curve anew for
what is left of it (`longer_run`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...config import ScheduleSection

_RISE = 0.3
"""Share of a one-cycle schedule in which the rate rises, where no warm-up is set."""

_FIRST = 1 / 25
"""The factor that it rises from."""


def make_schedule(
    settings: ScheduleSection, steps: int, replanned: tuple[int, float] | None = None
) -> Callable[[int], float]:
    """Resolve the schedule once.

    With warm-up over W steps the factor of step s (counted from 1) is s / W while s <= W. After
    that it is ``min + (1 - min) curve(p)`` with the progress ``p = (s - W - 1) / (steps - W - 1)``,
    which is 0 at the first step after the warm-up and 1 at the last. ``constant`` stays at 1,
    ``one_cycle`` rises in a cosine from 1/25. Replanned after step A with factor f, it is
    ``min + (f - min) curve((s - A - 1) / (steps - A - 1))`` from there on.

    Args:
        replanned: A and f of a schedule that was replanned.

    Returns:
        Step number, from 1, to the factor in [0, 1] on the learning rate.

    Source: Loshchilov & Hutter 2017 (SGDR, arXiv:1608.03983), eq. 5, for the cosines; Hägele et
    al. 2024 (arXiv:2405.18392), section 4.1, for ``warmup_stable_decay``, whose rate falls with
    1 minus the square root; Chen et al. 2022 (REX, arXiv:2107.04197), eq. 2; Smith & Topin 2018
    (arXiv:1708.07120), as torch's `OneCycleLR` has it, for ``one_cycle``.
    """
    rise, low, curve = warmup_length(settings, steps), settings.min_ratio, _curve(settings)
    one_cycle = settings.name == "one_cycle"
    # There the last step of the rise is the first of the fall.
    peak = rise - 1 if one_cycle and rise else rise

    def factor(step: int) -> float:
        if step <= rise and not (replanned and step > replanned[0]):
            return _cosine_rise(step, rise) if one_cycle else step / rise
        begin, top = replanned if replanned and step > replanned[0] else (peak, 1.0)
        progress = (step - begin - 1) / max(1, steps - begin - 1)
        bottom = top if settings.name == "constant" else low
        return bottom + (top - bottom) * curve(min(1.0, progress))

    return factor


def warmup_length(settings: ScheduleSection, steps: int) -> int:
    """Number of steps in which the rate rises, of a run of so many steps; less than all of them."""
    share = settings.warmup_share
    if settings.name == "one_cycle" and not share and not settings.warmup_steps:
        share = _RISE
    rise = round(share * steps) if share else settings.warmup_steps
    return rise if settings.warmup_steps else min(rise, steps - 1)


def _cosine_rise(step: int, rise: int) -> float:
    # The last step of the rise is the highest.
    share = (step - 1) / max(1, rise - 1)
    return _FIRST + (1 - _FIRST) * (1 - math.cos(math.pi * share)) / 2


def _curve(settings: ScheduleSection) -> Callable[[float], float]:
    """From 1 at progress 0 to 0 at progress 1."""
    cycles, power, decay = settings.cycles, settings.power, settings.decay_share

    def restarting(progress: float) -> float:
        # The end of the last cycle is not a beginning of another.
        return _cosine(1.0 if progress >= 1.0 else progress * cycles % 1.0)

    def stable(progress: float) -> float:
        return 1.0 - math.sqrt(max(0.0, (progress - (1.0 - decay)) / decay))

    curves: dict[str, Callable[[float], float]] = {
        "constant": lambda progress: 1.0,
        "linear": lambda progress: 1.0 - progress,
        "cosine": _cosine,
        "cosine_restarts": restarting,
        "polynomial": lambda progress: (1.0 - progress) ** power,
        "warmup_stable_decay": stable,
        "rex": lambda progress: (1.0 - progress) / (1.0 - progress / 2.0),
        "one_cycle": _cosine,
    }
    return curves[settings.name]


def _cosine(progress: float) -> float:
    return (1.0 + math.cos(math.pi * progress)) / 2.0
