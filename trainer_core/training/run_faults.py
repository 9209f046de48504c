"""What a loaded run does about steps that are not finite, and about a disk that takes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ..data.batches import BatchPlan
from ..errors import NonFiniteError
from .broken_place import broken_place
from .loaded import Loaded
from .objective import micro_batches, times_trained
from .observer import RunRequests, Warned
from .processes import Shares
from .recorder import Recorder
from .recovery import Recovery
from .slider import kept_strength
from .split_batches import SplitBatches
from .step import MicroStep, StepMaker

Target = Callable[[Recorder | None, int], int | None]
"""Finds the checkpoint to go back to from the first of the steps that broke; `Attempts` has it."""


def make_recovery(
    run: Loaded,
    plan: BatchPlan,
    shares: Shares,
    maker: StepMaker,
    split: SplitBatches,
    recorder: Recorder | None,
    target: Target,
) -> Recovery:
    """Decides what becomes of steps that are not finite.

    Args:
        run: The run.
        plan: Its micro-batches.
        shares: Which of them this process computes.
        maker: Computes one.
        split: Computes it in the parts that it is trained in.
        recorder: Of the first process.
        target: Finds the checkpoint to go back to.
    """
    times = times_trained(run.config)

    def compute(step: int, gradients: bool) -> list[MicroStep]:
        parts: list[MicroStep] = []
        for micro in micro_batches(plan, shares.dealt, times)(step):
            for part in split(maker, step, micro):
                parts.append(part)
                if gradients:
                    run.processes.backward(part.loss)
        return parts

    def place(step: int) -> str:
        if run.processes.sharded:
            return ""  # one whose memory is full would leave the others waiting in a pass
        with kept_strength(run.state.adapter):
            return broken_place(run.state.adapter, functools.partial(compute, step), run.processes)

    return Recovery(
        settings=run.config.training.recovery,
        counts=run.state,
        steps=run.steps,
        target=lambda first: target(recorder, first),
        place=place,
        end=recorder.broken if recorder else _told_elsewhere,
        warn=lambda line: run.observer.notify(Warned(line)) if recorder else None,
    )


def saving(run: Loaded, recorder: Recorder | None, recovery: Recovery) -> Callable[[int], None]:
    """Saves the state behind a step, or goes back from one that is not finite."""

    def save(step: int) -> None:
        found: NonFiniteError | None = None
        try:
            if recorder is not None:
                recorder.save(step)
        except NonFiniteError as error:
            found = error
        # The first process alone has looked; all go back together.
        if run.processes.sum_numbers([float(found is not None)])[0]:
            recovery.weights(step, found or _found_elsewhere(step))

    return save


def requests_with_retries(run: Loaded, recorder: Recorder | None) -> Callable[[], RunRequests]:
    """What a run is asked for, and a checkpoint that could not be written when it was due."""

    def requests() -> RunRequests:
        asked = run.observer.requests()
        return asked._replace(save=True) if recorder and recorder.retry_due() else asked

    return requests


def _found_elsewhere(step: int) -> NonFiniteError:
    found = f"the first process found what is not finite at step {step}"
    return NonFiniteError(found, "finite weights and optimizer state", "It says which.")


def _told_elsewhere(step: int, first: int) -> str:
    return "The first process says how to go on."
