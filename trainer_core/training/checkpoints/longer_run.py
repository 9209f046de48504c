"""How the learning rate of a run goes on that was made longer after it had begun."""

from __future__ import annotations

from typing import NamedTuple

from ...config import RunConfig, ScheduleSection
from ...config.defaults import run_length
from ..step.learning_rate import make_schedule, warmup_length
from .checkpoint import Checkpoint, stored_section

SCHEDULE = "training.schedule (planned anew)"
"""Where a checkpoint's settings keep what `replan_schedule` gave for the steps that led to it."""

LEAST = 0.25
"""Of the highest rate: what a run that has fallen below goes on with, or it would learn nothing."""


class ReplannedSchedule(NamedTuple):
    """From where on the rest of a schedule was replanned.

    Attributes:
        step: Steps that were made then.
        factor: Of the highest rate, at the first step after them.
    """

    step: int
    factor: float


def replan_schedule(config: RunConfig, checkpoint: Checkpoint | None) -> ReplannedSchedule | None:
    """Plan the rest of a schedule for a run that has become longer than its checkpoint knows.

    It takes the schedule's curve from the rate where it stands, or from `LEAST` where that is
    lower, to the last one at the new end; a constant one stays where it is. What was planned at an
    earlier resume stays as long as the length does, so that a run that is stopped again goes on
    bit for bit.

    Returns:
        None for a schedule that is as the run file says: of a run that is not longer, of one
        whose schedule was changed by hand, and in the warm-up.
    """
    schedule = config.training.schedule
    # A constant one depends on the run's length only by a warm-up that is a share of it.
    fixed = schedule.name == "constant" and not schedule.warmup_share
    if (
        checkpoint is None
        or fixed
        or stored_section(checkpoint, "training.schedule", ScheduleSection) != schedule
    ):
        return None
    kept = checkpoint.settings.get(SCHEDULE)
    before = None if kept is None else ReplannedSchedule(int(kept[0]), float(kept[1]))
    steps = run_length(config)
    planned: int = checkpoint.settings.get("training.steps") or steps
    longer = steps > planned
    # Shorter than planned anew: the same way again, so that it still ends at the last rate.
    shorter = steps < planned and before is not None
    if checkpoint.step <= warmup_length(schedule, planned) or not (longer or shorter):
        return before
    here = make_schedule(schedule, planned, before)(checkpoint.step)
    return ReplannedSchedule(checkpoint.step, max(here, LEAST) if longer else here)


def replan_note(config: RunConfig, replanned: ReplannedSchedule) -> str:
    """What a run says whose schedule was replanned."""
    highest, steps = config.training.optimizer.learning_rate, run_length(config)
    last = make_schedule(config.training.schedule, steps, replanned)(steps)
    return (
        f"The run is {steps} steps long now, so the rest of its schedule is planned anew: the "
        f"learning rate goes from {highest * replanned.factor:.3g} at step {replanned.step + 1} to "
        f"{highest * last:.3g} at step {steps}."
    )
