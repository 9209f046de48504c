"""`train_loaded`: builds the `Trainer` of a loaded run, and trains."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from pathlib import Path

from ..adapters.init.eva import initialize_from_inputs
from ..config.optimizer import FINDS_ITS_RATE
from ..errors import RESUME
from ..filesystem.file_names import IMAGE_EXTENSIONS
from ..offload.block_selection import repeated_blocks
from .memory.device_errors import explain_device_errors
from .memory.memory_manager import MemoryManager, SmallerStep
from .metrics.adapter_norms import AdapterNorms
from .metrics.advice import Course
from .metrics.step_metrics import StepMetrics
from .objectives.validation import Validation
from .observer import Noted, Warned
from .previews import preview_generator
from .recorder import Recorder
from .setup.load import Loaded
from .setup.step_inputs import base_answers, batch_plan, measured_samples, micro_batch_loss
from .step.compiled_blocks import compiled
from .step.learning_rate import warmup_length
from .step.make_loss import times_trained
from .step.micro_batch import MicroBatchLoss
from .step.processes import Shares
from .step.read_ahead import ReadAhead
from .step.split_batches import SplitBatches
from .step.step_clock import StepClock
from .step.step_plan import StepPlan
from .step.token_routing import TokenRouting
from .trainer import Trainer


@explain_device_errors("an update of the adapter, or what is saved", f"Go on with {RESUME}.")
def train_loaded(run: Loaded, recorder: Recorder | None) -> tuple[str, int]:
    """Train a loaded run to its end.

    Args:
        recorder: Writes metrics, checkpoints and previews; None in all processes but the first.

    Returns:
        ``done`` or ``cancelled``, and the last step made.

    Raises:
        NonFiniteError: When too many steps in a row are not finite; the last state is saved.
        RunError: When the device has no room for a step, or a file cannot be written.
    """
    training, device = run.config.training, run.processes.device
    shares = Shares(training, run.processes.index, run.processes.count)
    plan = StepPlan(batch_plan(run), shares.dealt, times_trained(run.config))
    starts_from_inputs = run.config.adapter.init == "eva" and not run.state.step
    if starts_from_inputs and not _initialize_from_inputs(run):
        if recorder is not None:
            recorder.save(0)
        return "cancelled", 0
    # Only preservation samples may differ in size from the rest of their batch.
    passes = (run.processes.passes,) if run.preservation else ()
    maker = _routed(
        run, base_answers(run, micro_batch_loss(run, plan.batches, shares.part, *passes))
    )
    clock = StepClock(device)
    reading = ReadAhead(maker.prepare, plan.following(run.steps))
    with contextlib.closing(reading) as ahead, _compiled(run):
        maker = replace(maker, read_ahead=clock.waiting(ahead))
        split = SplitBatches(maker, enabled=not run.processes.sharded)
        end = Trainer(
            config=run.config,
            steps=run.steps,
            state=run.state,
            plan=plan,
            micro_batch_parts=split,
            processes=run.processes,
            observer=run.observer,
            recorder=recorder,
            memory=_memory_manager(run, split, recorder),
            clock=clock,
            # All processes would measure the same; the first one records it.
            step_metrics=_step_metrics(run, clock) if recorder else None,
            validation=_validation(run, maker, noted=recorder is not None),
            generate=preview_generator(run, recorder),
            replanned=run.replanned,
            checkpoint_folder=run.checkpoints,
        ).train()
    if recorder is not None:
        _note_limit(run)
    return end


def _initialize_from_inputs(run: Loaded) -> bool:
    """Initialize the adapter from the inputs of its layers (EVA); False if the run is cancelled.

    The result depends only on base, data and seed. A run that is cancelled here computes it again
    when it is resumed.
    """
    plan = StepPlan(batch_plan(run), times_per_sample=run.config.training.noises_per_latent)
    stopped = False
    with run.processes.leading(run.transformer) as leads:
        if leads:
            compute, each = micro_batch_loss(run, plan.batches, (0, 1)), plan.endless()
            found = initialize_from_inputs(
                run.state.adapter,
                lambda _: compute(*next(each)),
                run.config.seed,
                run.observer.cancelled,
            )
            stopped = found is None
            if found is not None:
                run.observer.notify(Noted(found.summary()))
    if run.processes.sum_numbers([float(stopped)])[0]:
        return False
    run.processes.share(run.state.adapter.parameters())
    return True


def _compiled(run: Loaded) -> contextlib.AbstractContextManager[None]:
    if not run.config.memory.compile:
        return contextlib.nullcontext()
    blocks = repeated_blocks(run.transformer, run.data.family.layers.repeated_blocks)
    first = run.processes.index == 0
    return compiled(
        blocks,
        run.processes.device,
        lambda line: run.observer.notify(Warned(line)) if first else None,
    )


def _routed(run: Loaded, maker: MicroBatchLoss) -> MicroBatchLoss:
    """The same micro-batches, computed as ``training.routing`` says."""
    settings, family = run.config.training.routing, run.data.family
    if settings.share == 1:
        return maker
    routing = TokenRouting(run.transformer, family, settings, run.config.seed)
    return replace(maker, predict=routing.routed(maker.predict), on_begin=routing.begin)


def _memory_manager(run: Loaded, split: SplitBatches, recorder: Recorder | None) -> MemoryManager:
    allowed = run.config.training.recovery.smaller
    return MemoryManager(
        run.placed,
        run.state.adapter.parameters(),
        run.state.optimizer,
        observer=run.observer,
        save=recorder.save if recorder else lambda step: None,
        may_grow=run.may_grow,
        smaller=SmallerStep(run.placed, split, run.pace) if allowed else None,
    )


def _step_metrics(run: Loaded, clock: StepClock) -> StepMetrics:
    settings = run.config.metrics
    norms = AdapterNorms(
        run.state.adapter,
        run.data.family.layers.repeated_blocks,
        # No process has a whole weight of a sharded base.
        0 if run.processes.sharded else settings.norms_every,
        steps=run.steps,
        warn=lambda line: run.observer.notify(Warned(line)),
    )
    return StepMetrics(clock, norms, settings.sigma_bands, run.processes.device)


def course_of(run: Loaded) -> Course:
    """What of a loaded run its advice depends on."""
    config, layers = run.config, run.state.adapter.layers.values()
    start = config.adapter.start_from
    return Course(
        rate=config.training.optimizer.learning_rate,
        steps=run.steps,
        warmup=warmup_length(config.training.schedule, run.steps),
        finds_rate=config.training.optimizer.name in FINDS_ITS_RATE,
        turns=any(layer.kind.multiplies for layer in layers),
        before="the base" if start is None else "the adapter that it started from",
        # An edit is to be what was trained where it is made of a training image.
        images=tuple if config.preview.controls else functools.partial(_training_images, run),
    )


def _training_images(run: Loaded) -> list[Path]:
    """Files of the first folder's trained images, as far as they are there."""
    root, items = run.config.dataset.path, run.data.dataset.items
    own = [not (each.regularization or each.validation or each.folder) for each in items.forms]
    names = [items.name(at) for at, counts in enumerate(items.each(own)) if counts]
    found = [Path(root, name) for name in dict.fromkeys(names)] if root else []
    return [path for path in found if path.suffix.lower() in IMAGE_EXTENSIONS and path.is_file()]


def _validation(run: Loaded, maker: MicroBatchLoss, *, noted: bool) -> Validation | None:
    """Make `Trainer.validation`; None without held-out images."""
    held, trained = measured_samples(run)
    if held is None:
        return None
    validation = Validation(
        held=held,
        trained=trained,
        loss=maker.loss,
        transformer=run.transformer,
        processes=run.processes,
        cancelled=run.observer.cancelled,
        warn=lambda line: run.observer.notify(Warned(line)),
    )
    if noted:
        run.observer.notify(Noted(_cost(validation, run.config.dataset.validation.every)))
    return validation


def _note_limit(run: Loaded) -> None:
    """Notify the observer of the layers that ``max_weight_norm`` has scaled down."""
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
    """Describe how long validation takes, for the user to weigh."""
    trained = validation.trained.images if validation.trained else 0
    return (
        f"Every {every} steps the loss is measured on {validation.held.images} held-out and "
        f"{trained} trained images, in {validation.passes} passes forward. That takes about as "
        f"long as {-(-validation.passes // 3)} passes of training; dataset.validation.every, "
        "dataset.validation.most and dataset.validation.noise_levels say how often and how many."
    )
