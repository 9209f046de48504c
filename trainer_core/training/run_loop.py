"""The loop of a loaded run: its batches, its noise levels, and what happens at its landmarks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch

from ..adapters.init.eva import initialize_from_inputs
from ..data.batches import BatchPlan, load_batch, part_of
from ..data.paces import sample_paces
from ..data.views import Views
from ..diffusion.sigma import make_density
from ..errors import RESUME
from ..inference.pipeline import sample_previews
from ..offload.swapped import repeated_blocks
from ..types import Batch, PreservedBatch, StepResult
from .compiled_blocks import compiled
from .loaded import Loaded
from .loop import Loop
from .loop_hooks import LoopHooks
from .observer import Noted, Warned
from .optimizer import make_schedule
from .out_of_memory import DeviceRoom, explained, skipped_when_full
from .processes import Shares
from .recorder import Recorder
from .step import StepMaker


@explained("an update of the adapter, or what is saved", f"Go on with {RESUME}.")
def run_loop(
    run: Loaded, shares: Shares, recorder: Recorder | None, *, may_grow: bool
) -> tuple[str, int]:
    """Train a run to its end.

    Args:
        run: The run.
        shares: Which part of each step this process computes.
        recorder: Writes steps, checkpoints and previews down; None in all processes but the first.
        may_grow: Whether blocks may be moved onto the device where there is room.

    Returns:
        ``done`` or ``cancelled``, and the last step made.
    """
    loop = _loop(run, shares, recorder, may_grow)
    from_inputs = run.config.adapter.init == "eva" and not run.state.step
    if from_inputs and not _initialize_from_inputs(run):
        loop.hooks.save(0)
        return "cancelled", 0
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


def _initialize_from_inputs(run: Loaded) -> bool:
    """Give a new run's adapter the initialization that comes from the layers' inputs.

    It depends on base, data and seed alone, so that a run that was stopped here finds it again.
    False when the run was cancelled meanwhile.
    """
    count, stopped = run.config.training.gradient_accumulation_steps, False
    with run.processes.leading(run.transformer) as leads:
        if leads:
            compute = _step_maker(run, _plan(run), (0, 1))
            seen = initialize_from_inputs(
                run.state.adapter,
                lambda batch: compute(1 + batch // count, batch % count),
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


def _plan(run: Loaded) -> BatchPlan:
    config, training = run.config, run.config.training
    views = Views.of(config.dataset, config.seed)
    return BatchPlan(
        buckets=run.data.dataset.buckets,
        # Samples that are given their control images in other steps share no pass.
        control_counts=[(item.kind, views.agreement(item)) for item in run.data.dataset.items],
        batch_size=training.batch_size,
        micro_batches=training.gradient_accumulation_steps,
        num_repeats=sample_paces(run.data.dataset.items, config.dataset)[0],
        seed=config.seed,
        preserved_share=config.dataset.preservation.share if run.preservation else 0.0,
    )


def _step_maker(
    run: Loaded,
    plan: BatchPlan,
    part: tuple[int, int],
    passes: Callable[[int], int] = lambda own: own,
) -> StepMaker:
    config, kept = run.config, run.preservation

    def load_preserved(step: int, micro: int) -> PreservedBatch | None:
        if kept is None:
            return None
        own, drawn = len(plan.indices(step, micro)), plan.preserved(step, micro)
        mine = [drawn[place - own] for place in part_of(plan.batch_size, part) if place >= own]
        return kept.batch(mine) if mine else None

    return StepMaker(
        load=functools.partial(
            load_batch,
            run.data.dataset,
            plan,
            caption_dropout=config.dataset.caption_dropout,
            seed=config.seed,
            share=part,
            views=Views.of(config.dataset, config.seed),
            sample_weights=sample_paces(run.data.dataset.items, config.dataset)[1],
            mask=config.dataset.mask,
        ),
        load_preserved=load_preserved,
        predict=functools.partial(
            run.data.family.predict, run.transformer, guidance=config.training.guidance
        ),
        sample_sigma=_sigma_sampler(run),
        seed=config.seed,
        part=part,
        device=run.processes.device,
        passes=passes,
    )


def _loop(run: Loaded, shares: Shares, recorder: Recorder | None, may_grow: bool) -> Loop:
    config, training = run.config, run.config.training
    schedule = make_schedule(training.schedule, run.steps, run.anew)
    plan = _plan(run)
    # Only points that the base is held to may have other sizes than the rest of their batch.
    passes = (run.processes.passes,) if run.preservation else ()

    def preview(step: int) -> bool:
        stop = run.observer.cancelled
        skipped = skipped_when_full(f"previews of step {step}", run.processes, run.observer)
        with run.beside.sampling(), run.processes.leading(run.transformer):
            if recorder is not None:
                with recorder.saved_on_failure(step), skipped, run.state.shown():
                    sampler = run.data.sampler(run.transformer, run.processes.device)
                    deliver = functools.partial(recorder.image, step)
                    given = run.data.prompts, deliver, stop, run.data.dataset.usual_layers
                    sample_previews(sampler, config.preview, *given)
        # All end together; the others wait here until the first process has its previews.
        return run.processes.sum_numbers([float(stop())])[0] > 0

    def record(result: StepResult) -> None:
        samples = training.batch_size * training.gradient_accumulation_steps
        run.state.advance(result.step, result.epoch, samples)
        if recorder is not None:
            recorder.record(result)

    save = recorder.save if recorder else lambda step: None
    adapter, optimizer = run.state.adapter.parameters(), run.state.optimizer
    room = DeviceRoom(run.placed, adapter, optimizer, run.observer, save, may_grow=may_grow)
    return Loop(
        settings=training,
        steps=run.steps,
        preview_every=config.preview.every,
        micro_batches=shares.micro_batches,
        micro_step=_step_maker(run, plan, shares.part, *passes),
        parameters=adapter,
        optimizer=optimizer,
        learning_rate=lambda step: training.optimizer.learning_rate * schedule(step),
        epoch=plan.epoch,
        processes=run.processes,
        hooks=LoopHooks(
            record=record,
            save=save,
            preview=preview,
            broken=recorder.broken if recorder else _told_elsewhere,
            requests=run.observer.requests,
            compute=room.compute,
            between=room.between_steps,
        ),
    )


def _told_elsewhere(step: int) -> str:
    return "The first process says how to go on."


def _sigma_sampler(run: Loaded) -> Callable[[Batch, torch.Generator], float]:
    # One for each size, made before the first step: a shift may be read from the base's files.
    sigma, data = run.config.training.sigma, run.data
    by_shape: dict[tuple[int, ...], Callable[[torch.Generator], float]] = {}
    for bucket in set(data.dataset.buckets):
        size = (data.location, bucket.width, bucket.height)
        usual = data.family.training_shift(*size) if sigma.density == "shifted" else 1.0
        by_shape[data.family.latent_shape(*size)[-2:]] = make_density(
            sigma.density,
            sigma.mean,
            sigma.std,
            sigma.shift or usual,
            sigma.min,
            sigma.max,
            sigma.mode_scale,
        )
    return lambda batch, generator: by_shape[tuple(batch.latents.shape[-2:])](generator)
