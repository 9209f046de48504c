"""A run with everything in memory, ready for its first step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...adapter_files.factors.put_on_base import BaseAdapters
from ...adapter_files.names.text_encoder_names import is_text_layer
from ...adapters import AttachedAdapter
from ...adapters.max_weight_norm import WeightNormLimit, weight_norms
from ...adapters.parameter_groups import pace_notes, parameter_groups
from ...adapters.warm_start import start_from
from ...config import OptimizerSection, RunConfig
from ...config.defaults import run_length
from ...config.optimizer import waits_note
from ...data.cache.build import cache_folder
from ...offload.load_base import PlacedBase
from ...offload.machine import Machine
from ...offload.step_pace import StepPace
from ...offload.swapped import repeated_blocks
from ..checkpoints.average import averages_of
from ..checkpoints.best_loss import BestLoss, measured_by
from ..checkpoints.longer_run import PlannedAnew, planned_anew, replan_note
from ..checkpoints.state import TrainState
from ..memory.out_of_memory import explained
from ..metrics.ledger import Ledger
from ..objectives.preservation import Preservation, compute_missing, plan_trajectories
from ..objectives.slider import made_images
from ..observer import CacheProgress, EndedEarlyError, Noted, Observer, Warned, told_or_ended
from ..optimizers import OPTIMIZERS, make_optimizer
from ..prepare.encode_dataset import Prepared
from ..step.objective import make_learned
from ..step.processes import Processes, end_where_asked
from .load_denoiser import load_adapted
from .start import Start

_BY_HAND = {
    "training.optimizer.learning_rate",
    "training.recovery.returns",
    "training.recovery.rate_factor",
}
"""Who changes one of these at a resume has taken over from the recovery: it begins anew."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run with everything in memory, ready for its first step.

    Attributes:
        placed: The base, and where its blocks are kept.
        beside: The adapters that are part of the base.
        state: The adapter in training.
        steps: Length of the run.
        preservation: What the base is held to.
        anew: How the learning rate goes on of a run that was made longer.
        slider: The images that a slider is trained on.
        pace: What the planner knows of a step's time.
        may_grow: Whether blocks may be moved onto the device where there is room.
        checkpoints: Folder of the checkpoint that the run goes on from.
    """

    config: RunConfig
    data: Prepared
    precision: str
    placed: PlacedBase
    beside: BaseAdapters
    state: TrainState
    processes: Processes
    observer: Observer
    steps: int
    preservation: Preservation | None
    anew: PlannedAnew | None
    slider: Preservation | None
    pace: StepPace | None
    may_grow: bool
    checkpoints: Path | None

    @property
    def transformer(self) -> torch.nn.Module:
        """The denoiser, with its adapter."""
        return self.placed.transformer


@explained("the base, and what is made before the first step")
def load(
    config: RunConfig,
    *,
    observer: Observer,
    processes: Processes,
    data: Prepared,
    precision: str,
    start: Start,
    base: str,
    machine: Machine,
    at_end: contextlib.ExitStack,
    pace: StepPace | None = None,
    may_grow: bool = False,
) -> Loaded:
    """Load the base, attach the adapter and bring it to where the run starts.

    Args:
        data: What `prepare` gave.
        precision: The number format that is computed in.
        start: Where the run starts.
        base: Identity of the base's weights.
        machine: What the run may take of the computer.
        at_end: Takes down what must not outlive the run, however it ends.
        pace: What the planner knows of a step's time; None where nothing was planned.
        may_grow: Whether blocks may be moved onto the device where there is room.

    Raises:
        InputError: When base, adapter or start do not fit each other.
        StorageError: When what is cached before the first step cannot be written.
        EndedEarlyError: In every process, when the run was cancelled meanwhile.
    """
    with processes.turn():
        placed, beside, adapter = load_adapted(
            config, data, precision, processes, observer, machine, at_end
        )
        transformer = placed.transformer
        initial = None if start.checkpoint is not None else start.adapter
        taken = None if initial is None else start_from(transformer, adapter, initial)
        # Later a weight may be in parts, or elsewhere.
        norms = weight_norms(adapter) if config.training.max_weight_norm else None
        blocks = repeated_blocks(transformer, data.family.layers.repeated_blocks)
        processes.shard(transformer, blocks, adapter.parameters())
    preservation, slider = _made_before(
        config,
        data,
        transformer,
        adapter=adapter,
        base=f"{base} {precision}",
        processes=processes,
        observer=observer,
    )
    # A decomposition of the base's weights may end otherwise in another process.
    processes.share(list(adapter.frozen_tensors().values()))
    if taken is not None:
        processes.share(adapter.parameters())
    if processes.index == 0:
        summary = "" if taken is None else taken.summary()
        _notify_of_adapter(adapter, config.training.optimizer, observer, summary)
    state = _initial_state(config, adapter, norms)
    state.ledger = Ledger(len(data.dataset), lambda index: data.dataset.items[index].name)
    if (note := _restore(state, start, config)) and processes.index == 0:
        observer.notify(Noted(note))
    steps, anew = run_length(config), planned_anew(config, start.checkpoint)
    if anew is not None and processes.index == 0:
        _notify_of_plan(config, anew, state.step, observer)
    return Loaded(
        config=config,
        data=data,
        precision=precision,
        placed=placed,
        beside=beside,
        state=state,
        processes=processes,
        observer=observer,
        steps=steps,
        preservation=preservation,
        anew=anew,
        slider=slider,
        pace=pace,
        may_grow=may_grow,
        checkpoints=start.folder.parent if start.folder else None,
    )


def _initial_state(
    config: RunConfig, adapter: AttachedAdapter, norms: Mapping[str, Tensor] | None
) -> TrainState:
    """A state before its first step; `norms` are those of the base's weights under a limit."""
    training, best = config.training, BestLoss(measured_by(config))
    groups = parameter_groups(adapter, training.optimizer)
    optimizer = make_optimizer(training.optimizer, groups)
    average = averages_of(training.ema, dict(adapter.named_parameters()))
    limit = None if norms is None else WeightNormLimit(adapter, training.max_weight_norm, norms)
    learned = make_learned(training.loss)
    return TrainState(adapter, optimizer, learned=learned, average=average, limit=limit, best=best)


def _restore(state: TrainState, start: Start, config: RunConfig) -> str:
    """Restore the checkpoint, where there is one; what is not taken over from it, in words."""
    if start.checkpoint is None:
        return ""
    note = state.restore(start.checkpoint, config.training.optimizer)
    if any(each.setting in _BY_HAND for each in start.changes):
        state.returns = 0
    return note


def _made_before(
    config: RunConfig,
    data: Prepared,
    transformer: torch.nn.Module,
    *,
    adapter: AttachedAdapter,
    base: str,
    processes: Processes,
    observer: Observer,
) -> tuple[Preservation | None, Preservation | None]:
    """What the base makes before the first step: points that it is held to, a slider's images."""
    # It depends on the numbers that the base computes with.
    ways = (config.memory.base_format, config.memory.compute)
    numbers = " ".join([base, *(way for way in ways if way not in {"auto", "dense"})])
    make = functools.partial(_made_by_base, config, data, transformer, adapter, processes, observer)
    place = cache_folder(config)
    plan = functools.partial(
        plan_trajectories, config, data.family, data.location, data.dataset, place, numbers
    )
    kept, images = plan(), plan(slider=True)
    preservation = make(kept, "samples of what the base does, to keep it")
    slider = make(images, "images to train the slider on")
    if slider is not None:
        data.dataset.made = made_images(slider)
    return preservation, slider


def _made_by_base(
    config: RunConfig,
    data: Prepared,
    transformer: torch.nn.Module,
    adapter: AttachedAdapter,
    processes: Processes,
    observer: Observer,
    kept: Preservation | None,
    what: str,
) -> Preservation | None:
    """Let the base, without its adapter, make the images that are not cached."""
    if kept is None:
        return None
    adapter.strength = 0.0
    done = True
    with processes.leading(transformer) as leads:
        if leads:
            predict = functools.partial(
                data.family.prediction.predict, transformer, guidance=config.training.guidance
            )
            compute = functools.partial(
                compute_missing,
                kept,
                predict,
                transformer,
                processes.device,
                config.training.batch_size,
            )
            done = _made(compute, what, processes, observer)
    adapter.strength = 1.0
    # The others wait here and then only read.
    end_where_asked(processes, not done)
    return kept


def _made(
    compute: Callable[[Callable[[int, int], None]], int],
    what: str,
    processes: Processes,
    observer: Observer,
) -> bool:
    """Let the base make images; False where the run was cancelled meanwhile."""
    tell = functools.partial(told_or_ended, observer, what)
    if processes.sharded:
        # The others may be in the middle of a pass, so this is not left half way.
        tell = lambda done, total: observer.notify(CacheProgress(done, total, what))  # noqa: E731
    try:
        compute(tell)
    except EndedEarlyError:
        return False
    return True


def _notify_of_plan(config: RunConfig, anew: PlannedAnew, step: int, observer: Observer) -> None:
    # Once: a run that is stopped again goes on as it was told.
    if anew.step == step:
        observer.notify(Noted(replan_note(config, anew)))


def _notify_of_adapter(
    adapter: AttachedAdapter,
    settings: OptimizerSection,
    observer: Observer,
    warm_start: str,
) -> None:
    for note in [*adapter.notes, *([warm_start] if warm_start else [])]:
        observer.notify(Noted(note))
    # A text encoder's layers have a rate of their own.
    plans = [each for each in adapter.plans if not is_text_layer(each.name)]
    for note in pace_notes(plans, settings.learning_rate, OPTIMIZERS[settings.name].pace):
        observer.notify(Warned(note))
    trained = adapter.parameters()
    note = waits_note(settings.name, len(trained))
    if note and trained[0].device.type != "cpu":
        observer.notify(Warned(note))
    if again := adapter.matched_again:
        found = f"{len(again)} matches named a layer that was chosen already, {again[0]} first"
        observer.notify(Warned(f"{found}; each layer is adapted once."))
