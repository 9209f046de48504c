"""The loop of a loaded run: its batches, its noise levels, and what happens at its landmarks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..adapters.init.eva import initialize_from_inputs
from ..config.optimizer_facts import FINDS_ITS_RATE
from ..data.batches import BatchPlan
from ..errors import RESUME
from ..inference.pipeline import sample_previews
from ..offload.swapped import repeated_blocks
from ..types import StepResult
from .adapter_norms import AdapterNorms
from .checkpoint_rules import CheckpointClock
from .compiled_blocks import compiled
from .ledger import indices_by_place
from .loaded import Loaded
from .loop import Loop
from .loop_hooks import ComputeStep, LoopHooks, Measured
from .measurements import Measurements
from .objective import micro_batches, times_trained
from .observer import Noted, Warned
from .out_of_memory import DeviceRoom, explained, skipped_when_full
from .processes import Shares
from .read_ahead import ReadAhead
from .recorder import Recorder
from .recovery import Recovery, rate_share
from .run_batches import (
    all_passes,
    base_answers,
    batch_plan,
    measured_samples,
    places,
    step_maker,
)
from .run_faults import Target, make_recovery, requests_with_retries, saving
from .schedules import make_schedule, warmup_length
from .slider import kept_strength
from .smaller_step import SmallerStep
from .split_batches import SplitBatches
from .step import MicroStep, SampleError, StepMaker
from .step_clock import StepClock
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
    maker = base_answers(run, step_maker(run, plan, shares.part, *passes))
    following = places(plan, shares.dealt, run.steps, times_trained(run.config))
    with ReadAhead(maker.prepare, following) as ahead:
        # What is measured concerns all processes alike, and the first one writes it down.
        measurements = None if recorder is None else _measurements(run)
        read = ahead if measurements is None else measurements.clock.waiting(ahead)
        maker = replace(maker, ahead=read)
        loop = _loop(run, plan, shares, maker, recorder, measurements, target, may_grow)
        from_inputs = run.config.adapter.init == "eva" and not run.state.step
        if from_inputs and not _initialize_from_inputs(run, plan):
            loop.hooks.save(0)
            return "cancelled", 0
        if run.state.best.ends(run.config.training.early_stop):
            # It had come to its end already, and was killed before it could say so.
            return "done", run.state.step
        if run.processes.sum_numbers([float(run.observer.cancelled())])[0]:
            if not run.state.step:
                loop.hooks.save(0)
            return "cancelled", run.state.step
        with _compiled(run):
            end = _measured_late(run, loop) or loop.run(run.state.step)
        if recorder is not None:
            _tell_limit(run)
        return end


def _measured_late(run: Loaded, loop: Loop) -> tuple[str, int] | None:
    """Measure what was given up when the run was stopped; how it ends, where it ends by that.

    Else the best step, when to end, and the metrics would depend on where a run was stopped.
    """
    state = run.state
    if not state.step or state.best.measured >= state.step:
        return None
    measured = loop.hooks.measure(state.step, state.step >= run.steps)
    if loop.hooks.save_due(state.step):
        loop.hooks.save(state.step)  # it is there, and is marked
    if measured.cancelled:
        return "cancelled", state.step
    return ("done", state.step) if measured.stop else None


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
    stopped, noises = False, run.config.training.noises_per_latent
    with run.processes.leading(run.transformer) as leads:
        if leads:
            compute, each = step_maker(run, plan, (0, 1)), all_passes(plan, noises)
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
    measurements: Measurements | None,
    target: Target,
    may_grow: bool,
) -> Loop:
    config, training = run.config, run.config.training
    schedule = make_schedule(training.schedule, run.steps, run.anew)
    times = times_trained(config)
    share = rate_share(training.recovery, run.state.returns)
    split = SplitBatches(maker, enabled=not run.processes.sharded)
    recovery = make_recovery(run, plan, shares, maker, split, recorder, target)
    hooks = _hooks(run, plan, maker, split, recorder, measurements, recovery, may_grow)
    return Loop(
        settings=training,
        steps=run.steps,
        preview_every=config.preview.every,
        micro_batches=micro_batches(plan, shares.dealt, times),
        samples=lambda step: plan.samples(step) * times,
        times=times,
        micro_step=maker,
        parameters=run.state.adapter.parameters(),
        optimizer=run.state.optimizer,
        learning_rate=lambda step: training.optimizer.learning_rate * schedule(step) * share,
        epoch=plan.epoch,
        processes=run.processes,
        hooks=hooks if measurements is None else measurements.heard(hooks),
    )


def _hooks(
    run: Loaded,
    plan: BatchPlan,
    maker: StepMaker,
    split: SplitBatches,
    recorder: Recorder | None,
    measurements: Measurements | None,
    recovery: Recovery,
    may_grow: bool,
) -> LoopHooks:
    training, state = run.config.training, run.state

    def record(result: StepResult) -> None:
        state.step = result.step
        state.skipped = state.skipped + 1 if result.skipped else 0
        if recorder is not None:
            recorder.record(measurements.complete(result) if measurements else result)

    clock = CheckpointClock(training.checkpoint_minutes if recorder else 0.0)
    write, ask = saving(run, recorder, recovery), requests_with_retries(run, recorder)

    def save(step: int) -> None:
        write(step)
        clock.saved()

    def seen(step: int, errors: Sequence[SampleError]) -> None:
        state.learn(step, errors)
        if state.ledger is not None:
            state.ledger.take(step, indices_by_place(plan, step), errors)

    begun = (run.placed, state.adapter.parameters(), state.optimizer, run.observer)
    kept = recorder.save if recorder else lambda step: None
    allowed = training.recovery.smaller
    smaller = SmallerStep(run.placed, split, run.pace) if allowed else None
    room = DeviceRoom(*begun, kept, may_grow=may_grow, smaller=smaller)
    return LoopHooks(
        record=record,
        save=save,
        preview=_preview(run, recorder),
        broken=recovery.broken,
        requests=lambda: clock.asking(ask()),
        compute=_computing(run, room),
        divided=split,
        between=room.between_steps,
        measure=_measure(run, maker, recorder),
        seen=seen,
        save_due=lambda step: state.best.step == step,
        updated=lambda step: state.updated(),
        kept_on_failure=recorder.saved_on_failure if recorder else contextlib.nullcontext,
    )


def _computing(run: Loaded, room: DeviceRoom) -> ComputeStep:
    """Computes a step where the device has room; a slider turns its adapter over meanwhile."""
    if run.slider is None:
        return room.compute

    def compute(step: int, work: Callable[[], list[MicroStep]]) -> list[MicroStep]:
        with kept_strength(run.state.adapter):
            return room.compute(step, work)

    return compute


def _preview(run: Loaded, recorder: Recorder | None) -> Callable[[int], bool]:
    """Generates the preview images; the first process alone, or all where the base is in parts."""
    weights = run.config.training.ema.previews

    def preview(step: int) -> bool:
        stop = run.observer.cancelled
        skipped = skipped_when_full(f"previews of step {step}", run.processes, run.observer)
        with run.beside.sampling(), run.processes.leading(run.transformer):
            if recorder is not None:
                with recorder.saved_on_failure(step), skipped, run.state.shown(weights):
                    sampler = run.data.sampler(run.transformer, run.processes.device)
                    deliver = functools.partial(recorder.image, step)
                    given = run.data.prompts, deliver, stop, run.data.dataset.usual_layers
                    sample_previews(sampler, run.config.preview, *given)
        # All end together; the others wait here until the first process has its previews.
        return run.processes.sum_numbers([float(stop())])[0] > 0

    return preview


def _measurements(run: Loaded) -> Measurements:
    settings, family = run.config.metrics, run.data.family
    # A weight in parts is nowhere whole.
    every = 0 if run.processes.sharded else settings.norms_every

    def warn(line: str) -> None:
        run.observer.notify(Warned(line))

    rise = warmup_length(run.config.training.schedule, run.steps)
    finds = run.config.training.optimizer.name in FINDS_ITS_RATE
    begun = run.state.adapter, family.repeated_blocks, every, run.steps, warn, rise
    norms = AdapterNorms(*begun, finds_rate=finds)
    device = run.processes.device
    return Measurements(StepClock(device), norms, settings.sigma_bands, device)


def _measure(
    run: Loaded, maker: StepMaker, recorder: Recorder | None
) -> Callable[[int, bool], Measured]:
    """Measures the loss on held-out images where it is due."""
    samples, every = measured_samples(run), run.config.dataset.validation.every
    if samples is None:
        return lambda step, ends: Measured()
    validation = Validation(
        *samples,
        maker.loss,
        run.transformer,
        run.processes,
        run.observer.cancelled,
        lambda line: run.observer.notify(Warned(line)),
    )

    def measure(step: int, ends: bool) -> Measured:
        if step % every and not ends:
            return Measured()
        # What previews show is measured.
        with run.state.shown(run.config.training.ema.previews):
            measured = validation(step)
        if measured.loss is None:
            return measured
        if recorder is not None:
            recorder.measured(step, measured.loss, measured.trained)
        best = run.state.best
        if step > 0:
            best.take(step, measured.loss, regular=step % every == 0)
        else:
            best.take_base(measured.loss)
        return replace(measured, stop=best.ends(run.config.training.early_stop))

    if recorder is not None:
        run.observer.notify(Noted(_cost(validation, every)))
    return measure


def _tell_limit(run: Loaded) -> None:
    """Say which layers had become too strong."""
    most = run.state.limit and run.state.limit.most_often()
    if most:
        name, times, layers = most
        run.observer.notify(
            Noted(
                f"training.max_weight_norm has scaled {layers} of "
                f"{len(run.state.adapter.names)} layers down, {name} most often ({times} steps)"
            )
        )


def _cost(validation: Validation, every: int) -> str:
    """What measuring takes, for the user to weigh."""
    trained = validation.trained.images if validation.trained else 0
    return (
        f"Every {every} steps the loss is measured on {validation.held.images} held-out and "
        f"{trained} trained images, in {validation.passes} passes forward. That takes about as "
        f"long as {-(-validation.passes // 3)} passes of training; dataset.validation.every, .most "
        "and .noise_levels say how often and how many."
    )
