"""From what is prepared to a run with everything in memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from ..adapter_files.write.adapter_file import check_layouts
from ..adapters import AttachedAdapter, attach
from ..adapters.learning_rates import pace_notes, parameter_groups
from ..adapters.warm_start import start_from
from ..config import RunConfig
from ..config.length import run_length
from ..data.cache import cache_folder
from ..device import DTYPES
from .observer import CacheProgress, Observer, Warned
from .optimizer import make_optimizer
from .prepare import Prepared
from .preservation import Preservation, compute_missing, plan_preservation
from .processes import Processes
from .start import Start
from .state import TrainState


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run with everything in memory, ready for its first step."""

    config: RunConfig
    data: Prepared
    precision: str
    transformer: torch.nn.Module
    state: TrainState
    processes: Processes
    observer: Observer
    steps: int
    preservation: Preservation | None


def load(
    config: RunConfig,
    observer: Observer,
    processes: Processes,
    data: Prepared,
    precision: str,
    start: Start,
    base: str,
) -> Loaded:
    """Load the base, attach the adapter and bring it to where the run starts.

    Args:
        config: The run file.
        observer: Hears progress and notes.
        processes: Those that share the run.
        data: What `prepare` gave.
        precision: The number format that is computed in.
        start: Where the run starts.
        base: Identity of the base's weights.

    Raises:
        InputError: When base, adapter or start do not fit each other.
        StorageError: When what is cached before the first step cannot be written.
    """
    transformer = data.family.load_transformer(data.location, DTYPES[precision], processes.device)
    preservation = _preserve(config, data, transformer, f"{base} {precision}", processes, observer)
    if config.memory.gradient_checkpointing:
        data.family.enable_checkpointing(transformer)
    adapter = _attach(config, data, transformer)
    # Hours of training must not end at a file that cannot be written.
    check_layouts(adapter.state(), config.output.layouts, data.family.key_map)
    # A decomposition of the base's weights may end otherwise in another process.
    processes.share(list(adapter.frozen_tensors().values()))
    if processes.index == 0:
        _tell_notes(adapter, config.training.optimizer.learning_rate, observer)
    groups = parameter_groups(adapter, config.training.optimizer)
    optimizer = make_optimizer(config.training.optimizer, groups)
    state = TrainState(adapter, optimizer)
    if start.checkpoint is not None:
        state.restore(start.checkpoint, config.training.optimizer)
    elif start.adapter is not None:
        taken = start_from(transformer, adapter, start.adapter)
        if processes.index == 0:
            observer.notify(Warned(taken.summary()))
    return Loaded(
        config=config,
        data=data,
        precision=precision,
        transformer=transformer,
        state=state,
        processes=processes,
        observer=observer,
        steps=run_length(config),
        preservation=preservation,
    )


def _attach(config: RunConfig, data: Prepared, transformer: torch.nn.Module) -> AttachedAdapter:
    return attach(
        transformer,
        config.adapter,
        presets=data.family.presets,
        unused=data.family.unused_layers(transformer),
        shared=data.family.shared_inputs,
        seed=config.seed,
    ).train()


def _preserve(
    config: RunConfig,
    data: Prepared,
    transformer: torch.nn.Module,
    base: str,
    processes: Processes,
    observer: Observer,
) -> Preservation | None:
    """Let the base, which has no adapter yet, make what it is held to."""
    folder = cache_folder(config)
    kept = plan_preservation(config, data.family, data.location, data.dataset, folder, base)
    if kept is None:
        return None
    if processes.index == 0:
        predict = functools.partial(
            data.family.predict, transformer, guidance=config.training.guidance
        )
        compute_missing(
            kept,
            predict,
            transformer,
            processes.device,
            config.training.batch_size,
            lambda done, total: observer.notify(CacheProgress(done, total, "points to preserve")),
        )
    # The others wait here and then only read.
    processes.barrier()
    return kept


def _tell_notes(adapter: AttachedAdapter, learning_rate: float, observer: Observer) -> None:
    for note in (*adapter.notes, *pace_notes(adapter.plans, learning_rate)):
        observer.notify(Warned(note))
    if adapter.skipped_duplicates:
        observer.notify(
            Warned(
                f"{adapter.skipped_duplicates} matches named a layer that was chosen already; each "
                "layer is adapted once."
            )
        )
