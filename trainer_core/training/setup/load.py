"""Loads a run: base, adapter or checkpoint, and what the base makes before the first step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ...adapter_files.factors.put_on_base import BaseAdapters, put_on_base
from ...adapter_files.names.text_encoder_names import is_text_layer
from ...adapter_files.write.write_adapter import check_layouts
from ...adapters import AttachedAdapter
from ...adapters.max_weight_norm import WeightNormLimit, weight_norm_tensors
from ...adapters.parameter_groups import pace_notes, parameter_groups
from ...adapters.warm_start import start_from
from ...bases.read_base_adapters import read_base_adapters
from ...config import OptimizerSection, RunConfig
from ...config.defaults import run_length
from ...config.optimizer import waits_note
from ...data.cache.build_cache import cache_folder
from ...device import DTYPES, is_out_of_memory, release_memory
from ...offload.block_selection import repeated_blocks
from ...offload.checkpointed_blocks import checkpoint_blocks
from ...offload.empty_base import empty_base
from ...offload.load_base import HOST_KEEPS, PlacedBase, load_base
from ...offload.machine import Machine
from ...offload.possible_plans import StepPace
from ...quantization.quantized_linear import set_compute
from ..checkpoints.best_loss import BestLoss, measured_by
from ..checkpoints.ema import averages_of
from ..checkpoints.longer_run import ReplannedSchedule, replan_note, replan_schedule
from ..checkpoints.train_state import TrainState
from ..memory.device_errors import explain_device_errors, first_line, full_memory_error
from ..metrics.loss_ledger import Ledger
from ..objectives.preservation_trajectories import Preservation, compute_missing, plan_trajectories
from ..objectives.preservation_twins import without_adapter
from ..objectives.slider import made_images
from ..observer import Noted, Observer, RunCancelledError, Warned, report_progress
from ..optimizers import OPTIMIZERS, make_optimizer
from ..prepare.attach_adapter import attach_adapter
from ..prepare.encode_dataset import Prepared
from ..step.make_loss import make_learned
from ..step.processes import Processes, cancel_together
from .starting_point import Start

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
        base_adapters: The adapters that are part of the base.
        state: The adapter in training.
        steps: Length of the run.
        preservation: What the base is held to.
        replanned: How the learning rate goes on of a run that was made longer.
        slider: The images that a slider is trained on.
        pace: What the planner knows of a step's time.
        may_grow: Whether blocks may be moved onto the device where there is room.
        checkpoints: Folder of the checkpoint that the run goes on from.
    """

    config: RunConfig
    data: Prepared
    precision: str
    placed: PlacedBase
    base_adapters: BaseAdapters
    state: TrainState
    processes: Processes
    observer: Observer
    steps: int
    preservation: Preservation | None
    replanned: ReplannedSchedule | None
    slider: Preservation | None
    pace: StepPace | None
    may_grow: bool
    checkpoints: Path | None

    @property
    def transformer(self) -> torch.nn.Module:
        """The denoiser, with its adapter."""
        return self.placed.transformer


@explain_device_errors("the base, and what is made before the first step")
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
        base: Identity of the base's weights.
        at_end: Takes down what must not outlive the run, however it ends.

    Raises:
        InputError: When base, adapter or start do not fit each other.
        StorageError: When what is cached before the first step cannot be written.
        RunCancelledError: In every process, when the run was cancelled meanwhile.
    """
    with processes.turn():
        placed, base_adapters, adapter = _load_adapted(
            config,
            data,
            precision,
            processes=processes,
            observer=observer,
            machine=machine,
            at_end=at_end,
        )
        transformer = placed.transformer
        initial = None if start.checkpoint is not None else start.adapter
        taken = None if initial is None else start_from(transformer, adapter, initial)
        # Later a weight may be in parts, or elsewhere.
        norms = weight_norm_tensors(adapter) if config.training.max_weight_norm else None
        blocks = repeated_blocks(transformer, data.family.layers.repeated_blocks)
        processes.shard(transformer, blocks, adapter.parameters())
    preservation, slider = _generate_by_base(
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
    if start.checkpoint is not None:
        note = state.restore(start.checkpoint, config.training.optimizer)
        if any(each.setting in _BY_HAND for each in start.changes):
            state.restores = 0
        if note and processes.index == 0:
            observer.notify(Noted(note))
    steps, replanned = run_length(config), replan_schedule(config, start.checkpoint)
    # Once: a run that is stopped again goes on as it was told.
    if replanned is not None and replanned.step == state.step and processes.index == 0:
        observer.notify(Noted(replan_note(config, replanned)))
    return Loaded(
        config=config,
        data=data,
        precision=precision,
        placed=placed,
        base_adapters=base_adapters,
        state=state,
        processes=processes,
        observer=observer,
        steps=steps,
        preservation=preservation,
        replanned=replanned,
        slider=slider,
        pace=pace,
        may_grow=may_grow,
        checkpoints=start.folder.parent if start.folder else None,
    )


def _load_adapted(
    config: RunConfig,
    data: Prepared,
    precision: str,
    processes: Processes,
    observer: Observer,
    machine: Machine,
    at_end: contextlib.ExitStack,
) -> tuple[PlacedBase, BaseAdapters, AttachedAdapter]:
    """Load a run's base and attach a new adapter, with more blocks swapped where memory is full.

    Args:
        observer: Told when the base cannot be multiplied as the run file says.
        at_end: As `load_base`, and gives back the RAM of blocks' inputs.

    Returns:
        The base, what is part of it, and its adapter. They are on the CPU where no device is to
        hold them whole.

    Raises:
        InputError: When base and adapter do not fit each other, or as `load_base`.
        RunError: When the device's memory is full although all blocks are swapped.
    """
    while True:
        try:
            with contextlib.ExitStack() as attempt:
                found = _load_once(
                    config,
                    data,
                    precision,
                    processes=processes,
                    observer=observer,
                    machine=machine,
                    at_end=attempt,
                )
                at_end.push(attempt.pop_all())
                return found
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        # Behind the handler: the error's frames hold what was loaded.
        release_memory(processes.device)
        config = _with_more_swapped(config, data, processes, reason)
        count = config.memory.blocks_to_swap
        observer.notify(
            Warned(f"Memory was full at loading ({reason}): {count} blocks are swapped.")
        )


def _with_more_swapped(
    config: RunConfig, data: Prepared, processes: Processes, reason: str
) -> RunConfig:
    memory, before = config.memory, config.memory.blocks_to_swap or 0
    lent = data.family.lent is not None
    refused = HOST_KEEPS if lent else _unchangeable(config, processes)
    most = 0 if lent else empty_base(data.location, data.family).blocks
    if refused or not memory.gradient_checkpointing or before >= most:
        why = refused or f"{before} of {most} blocks are swapped"
        found = f"the device's memory is full when the base is loaded ({reason}), and {why}"
        raise full_memory_error(found, "the base and its adapter")
    count = min(max(1, 2 * before), most)
    checkpoints = memory.blocks_to_checkpoint
    more = {
        "blocks_to_swap": count,
        "blocks_to_checkpoint": None if checkpoints is None else max(checkpoints, count),
    }
    return config.model_copy(update={"memory": memory.model_copy(update=more)})


def _unchangeable(config: RunConfig, processes: Processes) -> str | None:
    """Why a run cannot swap more blocks than it was told to."""
    if processes.sharded:
        return "the base is in parts (FSDP2)"
    # Weights stay on the device, beside which exact_delta puts the adapter's.
    return "adapter.exact_delta is true" if config.adapter.exact_delta else None


def _load_once(
    config: RunConfig,
    data: Prepared,
    precision: str,
    processes: Processes,
    observer: Observer,
    machine: Machine,
    at_end: contextlib.ExitStack,
) -> tuple[PlacedBase, BaseAdapters, AttachedAdapter]:
    device = torch.device("cpu") if processes.sharded else processes.device
    base = load_base(
        config.memory,
        data.family,
        data.location,
        dtype=DTYPES[precision],
        device=device,
        machine=machine,
        at_end=at_end,
    )
    transformer = base.transformer
    if data.location.reads_tokens:
        data.encoders.join_text(transformer, DTYPES[precision], device, at_end)
    _choose_products(config, transformer, processes, observer)
    base_adapters = put_on_base(
        transformer,
        data.family.layers.key_map,
        read_base_adapters(config.base, data.family),
        merge=not config.memory.blocks_to_swap,
    )
    base.mark(True)  # weights that an adapter was merged into are other tensors
    if base_adapters.unrepaired and processes.index == 0:
        first, count = base_adapters.unrepaired[0], len(base_adapters.unrepaired)
        observer.notify(
            Warned(
                f"{count} layers in {config.memory.base_format}, such as {first}, have no part in "
                "the accuracy-recovery adapter and stay rounded"
            )
        )
    if base_adapters.beside and config.adapter.exact_delta and processes.index == 0:
        observer.notify(
            Warned(
                f"adapter.exact_delta changes nothing in {len(base_adapters.beside)} layers, which "
                "have adapters of the base beside their weights"
            )
        )
    checkpoints = checkpoint_blocks(
        transformer,
        data.family,
        config.memory,
        device=processes.device,
        machine=machine,
        at_end=at_end,
        may_keep=not processes.sharded and config.training.recovery.smaller,
    )
    base.refusal = base.refusal or _unchangeable(config, processes)
    if checkpoints is None:
        base.refusal = base.refusal or "none is checkpointed"
    else:
        base.before_swap = checkpoints.chosen.update
        # A step that one process makes again would wait for the others' parts for ever.
        if not processes.sharded:
            base.checkpoint_all = checkpoints.checkpoint_all
            base.uncheckpointed = checkpoints.uncheckpointed
            base.needs_choice, base.keep = checkpoints.needs_choice, checkpoints.keep
    adapter = attach_adapter(transformer, data.family, config).train()
    if not processes.sharded:
        # A host, or the next run, goes on with the base's own layers.
        at_end.callback(adapter.detach)
    base.send_rest()  # the factors of a swapped block were made where its weights lie
    # Hours of training must not end at a file that cannot be written.
    check_layouts(adapter.state(), config.output.layouts, data.family.layers.key_map)
    return base, base_adapters, adapter


def _choose_products(
    config: RunConfig, transformer: nn.Module, processes: Processes, observer: Observer
) -> None:
    taken = set_compute(transformer, config.memory.compute)
    if config.memory.compute == "8bit" and not taken and processes.index == 0:
        observer.notify(
            Warned(
                f"memory.compute is 8bit, and {processes.device} can multiply no weight of this "
                "base in 8 bits: the run computes with dense weights"
            )
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
    return TrainState(
        adapter,
        optimizer,
        learned_weighting=learned,
        average=average,
        limit=limit,
        best=best,
    )


def _generate_by_base(
    config: RunConfig,
    data: Prepared,
    transformer: torch.nn.Module,
    *,
    adapter: AttachedAdapter,
    base: str,
    processes: Processes,
    observer: Observer,
) -> tuple[Preservation | None, Preservation | None]:
    """Let the base, without its adapter, make what a run needs of it before the first step.

    Returns:
        The points that the base is held to, and the images of a slider.
    """
    # They depend on the numbers that the base computes with.
    ways = (config.memory.base_format, config.memory.compute)
    numbers = " ".join([base, *(way for way in ways if way not in {"auto", "dense"})])
    plan = functools.partial(
        plan_trajectories,
        config,
        data.family,
        data.location,
        dataset=data.dataset,
        folder=cache_folder(config),
        base=numbers,
    )
    preservation, slider = plan(), plan(slider=True)
    predict = functools.partial(
        data.family.prediction.predict, transformer, guidance=config.training.guidance
    )
    device, size = processes.device, config.training.batch_size
    for trajectories, what in (
        (preservation, "samples of what the base does, to keep it"),
        (slider, "images to train the slider on"),
    ):
        if trajectories is None:
            continue
        # Of a base in parts the others may be in the middle of a pass: it is not left half way.
        may_cancel = not processes.sharded
        report = functools.partial(report_progress, observer, what, may_cancel=may_cancel)
        cancelled = False
        with without_adapter(adapter), processes.leading(transformer) as leads:
            try:
                if leads:
                    compute_missing(
                        trajectories,
                        predict,
                        transformer,
                        device=device,
                        batch_size=size,
                        notify=report,
                    )
            except RunCancelledError:
                cancelled = True
        # The others wait here and then only read.
        cancel_together(processes, cancelled)
    if slider is not None:
        data.dataset.made = made_images(slider)
    return preservation, slider


def _notify_of_adapter(
    adapter: AttachedAdapter, settings: OptimizerSection, observer: Observer, warm_start: str
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
