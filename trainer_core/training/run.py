"""`train`: from a run file to an adapter file."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..adapters import AttachedAdapter
from ..adapters.init.eva import initialize_from_inputs
from ..adapters.parameter_groups import pace_notes, parameter_groups
from ..adapters.warm_start import start_from
from ..config import MemorySection, RunConfig
from ..config.defaults import preservation_summary, resolved_length, run_length
from ..config.reading import dump_config
from ..data.batches import BatchPlan, load_batch, part_of
from ..data.cache import cache_folder
from ..device import (
    borrowed_random_state,
    borrowed_threads,
    release_memory,
    resolve_device,
    resolve_precision,
)
from ..errors import RESUME
from ..filesystem.allowed_folders import AllowedFolders
from ..inference.encoders import MakeSource
from ..inference.pipeline import sample_previews
from ..offload.load_base import PlacedBase
from ..offload.machine import Machine
from ..offload.swapped import repeated_blocks
from ..requirements import installed_versions
from ..types import PreservedBatch, RunResult, RunSummary, StepResult
from .checkpoint import require_newest
from .choose_plan import settle
from .compiled_blocks import compiled
from .encode_dataset import Prepared, content_hashes, prepare
from .load_adapted import load_adapted
from .loop import Loop
from .loop_hooks import LoopHooks
from .observer import CacheProgress, Observer, RunStarted, SilentObserver, Warned
from .optimizer import make_optimizer, make_schedule
from .out_of_memory import DeviceRoom, explained, skipped_when_full
from .preservation import Preservation, compute_missing, plan_preservation
from .processes import Processes, Shares, SingleProcess
from .recorder import Recorder, run_header
from .run_folder import RunFolder, create_version, open_version
from .sharding import check_settings
from .sigma_sampler import sigma_sampler
from .start import (
    Start,
    compared_settings,
    find_start,
    recorded_changes,
    start_identity,
)
from .state import TrainState
from .step import StepMaker


def train(
    config: RunConfig,
    observer: Observer | None = None,
    processes: Processes | None = None,
    make_source: MakeSource | None = None,
    workflow: Mapping[str, str] | None = None,
    within: AllowedFolders | None = None,
    machine: Machine | None = None,
) -> RunResult:
    """Train an adapter.

    Args:
        config: The run file.
        observer: Hears the run's events and may cancel it.
        processes: The processes that share the run; unset: this one alone, on ``memory.device``.
        make_source: Gives text and image encoders; unset: they come from the base's folder.
        workflow: What of the host started the run, as `workflow_texts` gives it; kept with the run
            and, at ``output.metadata: full``, in its adapter files.
        within: What dataset, cache and the run's own folder really have to lie in, for a run file
            that is not the user's own; None follows every link.
        machine: What the run may take of the computer; unset: all that is free.

    Returns:
        Where the files are; ``status`` is ``done`` or ``cancelled``.

    Raises:
        InputError: When the run file, dataset or base cannot be used; nothing was started.
        RunError: When the run failed; the last good state is on disk.
    """
    observer = observer or SilentObserver()
    processes = processes or SingleProcess(resolve_device(config.memory.device))
    embedded = config.base.path == "embedded"
    with (
        borrowed_threads(config.memory, embedded=embedded),
        borrowed_random_state(processes.device),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        try:
            if within is not None:
                within.require_all(Path(config.output.dir) / config.output.name, "output.name")
            on = machine or Machine()
            return _train(config, observer, processes, make_source, workflow or {}, within, on)
        finally:
            release_memory(processes.device)


def _train(
    config: RunConfig,
    observer: Observer,
    processes: Processes,
    make_source: MakeSource | None,
    workflow: Mapping[str, str],
    within: AllowedFolders | None,
    machine: Machine,
) -> RunResult:
    # What can be refused without loading anything is refused first.
    shares = Shares(config.training, processes.index, processes.count)
    if processes.sharded:
        check_settings(config)
    precision = resolve_precision(config.training.precision, processes.device)
    start = find_start(config, precision, processes)
    for note in start.checkpoint.damaged if start.checkpoint and processes.index == 0 else ():
        observer.notify(Warned(note))
    data = prepare(config, observer, processes, make_source, within, machine)
    config = resolved_length(config, data.dataset.own_images)
    hashes = content_hashes(data)
    given = start_identity(config, start.checkpoint)
    settings = compared_settings(
        config, precision, hashes["base"], hashes["dataset"], given, data.dataset.source
    )
    settled = settle(config, data, precision, start, settings, processes, observer, machine)
    start, planned = settled.start, settled.config
    with contextlib.ExitStack() as at_end:
        begin = (data, precision, start, hashes["base"])
        run = load(planned, observer, processes, *begin, machine, at_end)
        may_grow = config.memory.blocks_to_swap is None  # the user has not said how many
        if processes.index > 0:
            status, step = _run(run, shares, None, may_grow=may_grow)
            return RunResult(Path(config.output.dir), status, step, (), (), ())
        key_map = data.family.key_map
        # The run file keeps the user's words, so that another machine may choose anew.
        with _open_folder(config, start, hashes, workflow, planned.memory) as folder:
            header = run_header(settled.told, data, precision, hashes, workflow, observer)
            recorder = Recorder(
                folder, config, run.state, key_map, settled.settings, header, observer
            )
            with recorder:
                observer.notify(RunStarted(_summary(run, folder)))
                status, step = _run(run, shares, recorder, may_grow=may_grow)
                return recorder.finish(status, step)


@explained("an update of the adapter, or what is saved", f"Go on with {RESUME}.")
def _run(
    run: Loaded, shares: Shares, recorder: Recorder | None, *, may_grow: bool
) -> tuple[str, int]:
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
                run.observer.notify(Warned(seen.summary()))
    if run.processes.sum_numbers([float(stopped)])[0]:
        return False
    run.processes.share(run.state.adapter.parameters())
    return True


def _plan(run: Loaded) -> BatchPlan:
    config, training = run.config, run.config.training
    return BatchPlan(
        buckets=run.data.dataset.buckets,
        control_counts=run.data.dataset.control_buckets,
        batch_size=training.batch_size,
        micro_batches=training.gradient_accumulation_steps,
        num_repeats=[
            config.dataset.regularization.num_repeats
            if item.regularization
            else config.dataset.num_repeats
            for item in run.data.dataset.items
        ],
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
            regularization_weight=config.dataset.regularization.weight,
        ),
        load_preserved=load_preserved,
        predict=functools.partial(
            run.data.family.predict, run.transformer, guidance=config.training.guidance
        ),
        sample_sigma=sigma_sampler(run.config.training.sigma, run.data),
        seed=config.seed,
        part=part,
        device=run.processes.device,
        passes=passes,
    )


def _loop(run: Loaded, shares: Shares, recorder: Recorder | None, may_grow: bool) -> Loop:
    config, training = run.config, run.config.training
    schedule = make_schedule(training.schedule, run.steps)
    plan = _plan(run)
    # Only points that the base is held to may have other sizes than the rest of their batch.
    passes = (run.processes.passes,) if run.preservation else ()

    def preview(step: int) -> bool:
        stop = run.observer.cancelled
        skipped = skipped_when_full(f"previews of step {step}", run.processes, run.observer)
        with run.processes.leading(run.transformer):
            if recorder is not None:
                with recorder.saved_on_failure(step), skipped, run.state.shown():
                    sampler = run.data.sampler(run.transformer, run.processes.device)
                    deliver = functools.partial(recorder.image, step)
                    sample_previews(sampler, config.preview, run.data.prompts, deliver, stop)
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


_PLANNED = {"base_format", "blocks_to_swap", "swap_slots", "master"}
"""Memory settings as the run takes them, which ``run.json`` keeps."""


def _open_folder(
    config: RunConfig,
    start: Start,
    hashes: Mapping[str, str],
    workflow: Mapping[str, str],
    memory: MemorySection,
) -> RunFolder:
    record: dict[str, Any] = {
        "memory": memory.model_dump(mode="json", include=_PLANNED),
        "steps": run_length(config),
        "started": time.time(),
        "versions": installed_versions(),
        "hashes": dict(hashes),
    }
    found, checkpoint = start.folder, start.checkpoint
    if found is None or checkpoint is None:
        root = Path(config.output.dir) / config.output.name
        return create_version(root, record, dump_config(config), workflow)
    if checkpoint.damaged:
        record["damaged_checkpoints"] = list(checkpoint.damaged)
    folder = open_version(found.parent.parent)
    try:
        require_newest(folder.checkpoints, checkpoint)
        told = recorded_changes(folder.read_record(), start.changes, int(found.name))
        folder.go_on({**record, "changes": told}, dump_config(config), workflow)
    except BaseException:
        folder.release()
        raise
    return folder


def _summary(run: Loaded, folder: RunFolder) -> RunSummary:
    config = run.config
    return RunSummary(
        family=run.data.family.title,
        base=f"{run.data.location.folder.name} ({run.data.location.variant})",
        device=str(run.processes.device),
        precision=run.precision,
        adapter=f"{config.adapter.kind}, rank {config.adapter.rank}",
        layers=len(run.state.adapter.names),
        parameters=sum(p.numel() for p in run.state.adapter.parameters()),
        samples_per_bucket=run.data.samples_per_bucket(),
        steps=run.steps,
        preserved=preservation_summary(config),
        folder=folder.path,
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run with everything in memory, ready for its first step."""

    config: RunConfig
    data: Prepared
    precision: str
    placed: PlacedBase
    state: TrainState
    processes: Processes
    observer: Observer
    steps: int
    preservation: Preservation | None

    @property
    def transformer(self) -> torch.nn.Module:
        """The denoiser, with its adapter."""
        return self.placed.transformer


@explained("the base, and what is made before the first step")
def load(
    config: RunConfig,
    observer: Observer,
    processes: Processes,
    data: Prepared,
    precision: str,
    start: Start,
    base: str,
    machine: Machine,
    at_end: contextlib.ExitStack,
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
        machine: What the run may take of the computer.
        at_end: Takes down what must not outlive the run, however it ends.

    Raises:
        InputError: When base, adapter or start do not fit each other.
        StorageError: When what is cached before the first step cannot be written.
    """
    with processes.turn():
        placed, adapter = load_adapted(
            config, data, precision, processes, observer, machine, at_end
        )
        transformer = placed.transformer
        begun = None if start.checkpoint is not None else start.adapter
        taken = None if begun is None else start_from(transformer, adapter, begun)
        blocks = repeated_blocks(transformer, data.family.repeated_blocks)
        processes.shard(transformer, blocks, adapter.parameters())
    # What the base makes depends on the numbers that it computes with.
    ways = (config.memory.base_format, config.memory.compute)
    numbers = " ".join([base, precision, *(way for way in ways if way not in {"auto", "dense"})])
    preservation = _preserve(config, data, transformer, adapter, numbers, processes, observer)
    # A decomposition of the base's weights may end otherwise in another process.
    processes.share(list(adapter.frozen_tensors().values()))
    if taken is not None:
        processes.share(adapter.parameters())
    if processes.index == 0:
        _tell_notes(adapter, config.training.optimizer.learning_rate, observer)
        if taken is not None:
            observer.notify(Warned(taken.summary()))
    groups = parameter_groups(adapter, config.training.optimizer)
    optimizer = make_optimizer(config.training.optimizer, groups)
    state = TrainState(adapter, optimizer)
    if start.checkpoint is not None:
        state.restore(start.checkpoint, config.training.optimizer)
    steps = run_length(config)
    return Loaded(config, data, precision, placed, state, processes, observer, steps, preservation)


def _preserve(
    config: RunConfig,
    data: Prepared,
    transformer: torch.nn.Module,
    adapter: AttachedAdapter,
    base: str,
    processes: Processes,
    observer: Observer,
) -> Preservation | None:
    """Let the base, without its adapter, make what it is held to."""
    folder = cache_folder(config)
    kept = plan_preservation(config, data.family, data.location, data.dataset, folder, base)
    if kept is None:
        return None
    adapter.strength = 0.0
    with processes.leading(transformer) as leads:
        if leads:
            predict = functools.partial(
                data.family.predict, transformer, guidance=config.training.guidance
            )
            compute_missing(
                kept,
                predict,
                transformer,
                processes.device,
                config.training.batch_size,
                lambda done, total: observer.notify(
                    CacheProgress(done, total, "points to preserve")
                ),
            )
    adapter.strength = 1.0
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
