"""The loop of a loaded run: its batches, its noise levels, and what happens at its landmarks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace

from ..adapters.init.eva import initialize_from_inputs
from ..data.batches import BatchPlan
from ..errors import RESUME
from ..inference.pipeline import sample_previews
from ..offload.swapped import repeated_blocks
from ..types import StepResult
from .compiled_blocks import compiled
from .loaded import Loaded
from .loop import Loop
from .loop_hooks import LoopHooks, Measured
from .observer import Noted, Warned
from .optimizer import make_schedule
from .out_of_memory import DeviceRoom, explained, skipped_when_full
from .processes import Shares
from .read_ahead import ReadAhead
from .recorder import Recorder
from .recovery import rate_share
from .run_batches import all_passes, batch_plan, held_out, places, step_maker
from .run_faults import Target, make_recovery, requests_with_retries, saving
from .step import StepMaker
from .validation import Validation


@explained("an update of the adapter, or what is saved", f"Go on with {RESUME}.")
def run_loop(
    run: Loaded, shares: Shares, recorder: Recorder | None, target: Target, *, may_grow: bool
) -> tuple[str, int]:
    """Train a run to its end.

    Args:
        run: The run.
        shares: Which part of each step this process computes.
        recorder: Writes steps, checkpoints and previews down; None in all processes but the first.
        target: Finds the checkpoint to go back to.
        may_grow: Whether blocks may be moved onto the device where there is room.

    Returns:
        ``done`` or ``cancelled``, and the last step made.

    Raises:
        NonFiniteError: When its numbers are not finite, and nothing helps.
        GoBackError: When it is to go on from an older checkpoint.
    """
    plan = batch_plan(run)
    # Only points that the base is held to may have other sizes than the rest of their batch.
    passes = (run.processes.passes,) if run.preservation else ()
    maker = step_maker(run, plan, shares.part, *passes)
    following = places(plan, shares.dealt, run.steps)
    with ReadAhead(maker.prepare, following) as ahead:
        maker = replace(maker, ahead=ahead)
        loop = _loop(run, plan, shares, maker, recorder, target, may_grow)
        from_inputs = run.config.adapter.init == "eva" and not run.state.step
        if from_inputs and not _initialize_from_inputs(run, plan):
            loop.hooks.save(0)
            return "cancelled", 0
        if run.processes.sum_numbers([float(run.observer.cancelled())])[0]:
            if not run.state.step:
                loop.hooks.save(0)
            return "cancelled", run.state.step
        with _compiled(run):
            return loop.run(run.state.step)


def _compiled(run: Loaded) -> contextlib.AbstractContextManager[None]:
    if not run.config.memory.compile:
        return contextlib.nullcontext()
    blocks = repeated_blocks(run.transformer, run.data.family.repeated_blocks)
    first = run.processes.index == 0
    return compiled(
        blocks,
        run.processes.device,
        lambda line: run.observer.notify(Warned(line)) if first else None,
    )


def _initialize_from_inputs(run: Loaded, plan: BatchPlan) -> bool:
    """Give a new run's adapter the initialization that comes from the layers' inputs.

    It depends on base, data and seed alone, so that a run that was stopped here finds it again.
    False when the run was cancelled meanwhile.
    """
    stopped = False
    with run.processes.leading(run.transformer) as leads:
        if leads:
            compute, each = step_maker(run, plan, (0, 1)), all_passes(plan)
            seen = initialize_from_inputs(
                run.state.adapter,
                lambda _: compute(*next(each)),
                run.config.seed,
                run.observer.cancelled,
            )
            stopped = seen is None
            if seen is not None:
                run.observer.notify(Noted(seen.summary()))
    if run.processes.sum_numbers([float(stopped)])[0]:
        return False
    run.processes.share(run.state.adapter.parameters())
    return True


def _loop(
    run: Loaded,
    plan: BatchPlan,
    shares: Shares,
    maker: StepMaker,
    recorder: Recorder | None,
    target: Target,
    may_grow: bool,
) -> Loop:
    config, training = run.config, run.config.training
    schedule = make_schedule(training.schedule, run.steps, run.anew)

    def record(result: StepResult) -> None:
        samples = 0 if result.skipped else plan.samples(result.step)
        run.state.advance(result.step, result.epoch, samples)
        run.state.skipped = run.state.skipped + 1 if result.skipped else 0
        if recorder is not None:
            recorder.record(result)

    recovery = make_recovery(run, plan, shares, maker, recorder, target)
    adapter, optimizer = run.state.adapter.parameters(), run.state.optimizer
    save = recorder.save if recorder else lambda step: None
    begun, smaller = (run.placed, adapter, optimizer, run.observer), training.recovery.smaller
    room = DeviceRoom(*begun, save, may_grow=may_grow, smaller=smaller)
    share = rate_share(training.recovery, run.state.returns)
    return Loop(
        settings=training,
        steps=run.steps,
        preview_every=config.preview.every,
        micro_batches=lambda step: plan.dealt(step, shares.dealt),
        samples=plan.samples,
        micro_step=maker,
        parameters=adapter,
        optimizer=optimizer,
        learning_rate=lambda step: training.optimizer.learning_rate * schedule(step) * share,
        epoch=plan.epoch,
        processes=run.processes,
        hooks=LoopHooks(
            record=record,
            save=saving(run, recorder, recovery),
            preview=_preview(run, recorder),
            broken=recovery.broken,
            requests=requests_with_retries(run, recorder),
            compute=room.compute,
            between=room.between_steps,
            measure=_measure(run, maker, recorder),
        ),
    )


def _preview(run: Loaded, recorder: Recorder | None) -> Callable[[int], bool]:
    """Samples the preview images of a step, and says whether the run was cancelled meanwhile."""

    def preview(step: int) -> bool:
        stop = run.observer.cancelled
        skipped = skipped_when_full(f"previews of step {step}", run.processes, run.observer)
        with run.beside.sampling(), run.processes.leading(run.transformer):
            if recorder is not None:
                with recorder.saved_on_failure(step), skipped, run.state.shown():
                    sampler = run.data.sampler(run.transformer, run.processes.device)
                    deliver = functools.partial(recorder.image, step)
                    given = run.data.prompts, deliver, stop, run.data.dataset.usual_layers
                    sample_previews(sampler, run.config.preview, *given)
        # All end together; the others wait here until the first process has its previews.
        return run.processes.sum_numbers([float(stop())])[0] > 0

    return preview


def _measure(
    run: Loaded, maker: StepMaker, recorder: Recorder | None
) -> Callable[[int, bool], Measured]:
    """Measures the loss on held-out images where it is due."""
    held, every = held_out(run), run.config.dataset.validation.every
    if held is None:
        return lambda step, ends: Measured()
    validation = Validation(
        held,
        maker.loss,
        run.transformer,
        run.processes,
        run.observer.cancelled,
        lambda line: run.observer.notify(Warned(line)),
    )

    def measure(step: int, ends: bool) -> Measured:
        if step % every and not ends:
            return Measured()
        on_failure = recorder.saved_on_failure(step) if recorder else contextlib.nullcontext()
        # What the files will hold is measured.
        with on_failure, run.state.shown():
            measured = validation(step)
        if recorder is not None and measured.loss is not None:
            recorder.measured(step, measured.loss)
        return measured

    return measure
