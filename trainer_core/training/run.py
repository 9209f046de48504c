"""`train`: from a run file to an adapter file."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..adapter_files.write.adapter_file import check_layouts
from ..adapters import AttachedAdapter, attach
from ..adapters.pace import pace_notes
from ..adapters.parameter_groups import parameter_groups
from ..adapters.warm_start import start_from
from ..config import RunConfig
from ..config.length import resolved_length, run_length
from ..config.preservation import preservation_summary
from ..config.reading import dump_config
from ..data.batches import BatchPlan, load_batch, part_of
from ..data.cache import cache_folder
from ..device import (
    DTYPES,
    borrowed_random_state,
    borrowed_threads,
    release_memory,
    resolve_device,
    resolve_precision,
)
from ..diffusion.sigma import make_density
from ..filesystem.allowed_folders import AllowedFolders
from ..inference.encoders import MakeSource
from ..inference.previews import draw_previews
from ..types import AdapterState, Batch, PreservedBatch, RunResult, RunSummary
from ..weights.building import file_settings
from ..weights.encoder_fingerprint import file_identity, folder_identity
from .checkpoint import Checkpoint, restore_tensors
from .header import header_facts
from .loop import Loop, LoopHooks
from .observer import CacheProgress, Observer, RunStarted, SilentObserver, Warned
from .optimizer import make_optimizer
from .prepare import Prepared, prepare
from .preservation import Preservation, compute_missing, plan_preservation
from .processes import Processes, Shares, SingleProcess
from .recorder import Recorder
from .resume import Change, changed_settings, compared_settings, recorded_changes
from .run_folder import RunFolder, create_version, open_version
from .schedule import make_schedule
from .start import (
    begin_with_inputs,
    find_beginning,
    fitting,
    read_start,
    require_same,
    start_identity,
    stored_groups,
)
from .step import StepMaker
from .versions import installed_versions
from .whole_checkpoints import require_newest


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run with everything in memory, ready for its first step."""

    config: RunConfig
    data: Prepared
    precision: str
    transformer: torch.nn.Module
    adapter: AttachedAdapter
    optimizer: torch.optim.Optimizer
    processes: Processes
    observer: Observer
    done: int
    steps: int
    preservation: Preservation | None


def train(
    config: RunConfig,
    observer: Observer | None = None,
    processes: Processes | None = None,
    make_source: MakeSource | None = None,
    workflow: Mapping[str, str] | None = None,
    within: AllowedFolders | None = None,
) -> RunResult:
    """Train an adapter.

    Args:
        config: The run file.
        observer: Hears the run's events and may cancel it.
        processes: The processes that share the run; unset: this one alone, on ``memory.device``.
        make_source: Gives text and picture encoders; unset: they come from the base's folder.
        workflow: What of the host started the run, as `workflow_texts` gives it; kept with the run
            and, at ``output.metadata: full``, in its adapter files.
        within: What dataset, cache and the run's own folder really have to lie in, for a run file
            that is not the user's own; None follows every link.

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
            return _train(config, observer, processes, make_source, workflow or {}, within)
        finally:
            release_memory(processes.device)


def _train(
    config: RunConfig,
    observer: Observer,
    processes: Processes,
    make_source: MakeSource | None,
    workflow: Mapping[str, str],
    within: AllowedFolders | None,
) -> RunResult:
    # What can be refused without loading anything is refused first.
    shares = Shares(config.training, processes.index, processes.count)
    precision = resolve_precision(config.training.precision, processes.device)
    found, checkpoint = find_beginning(config, processes)
    for note in checkpoint.damaged if checkpoint and processes.index == 0 else ():
        observer.notify(Warned(note))
    start = None if checkpoint else read_start(config)
    data = prepare(config, observer, processes, make_source, within)
    config = resolved_length(config, data.dataset.own_images)
    hashes = _hashes(data)
    given = start_identity(config, checkpoint)
    settings = compared_settings(
        config, precision, hashes["base"], hashes["dataset"], given, data.dataset.source
    )
    changes: list[Change] = []
    if found is not None and checkpoint is not None:
        changes = changed_settings(checkpoint, settings)
        checkpoint = fitting(found.parent.parent, checkpoint, settings, config, observer)
        found = found if checkpoint else None
        start = None if checkpoint else read_start(config)
        # What decides may differ from machine to machine, such as a precision of auto.
        require_same(config, processes, found, checkpoint)
    loaded = _load(config, observer, processes, data, checkpoint or start, hashes["base"])
    if processes.index > 0:
        status, step = _run(loaded, shares, None)
        return RunResult(Path(config.output.dir), status, step, (), (), ())
    with (
        _open_folder(config, found, checkpoint, hashes, workflow, changes) as folder,
        _recorder(loaded, folder, settings, hashes, workflow) as recorder,
    ):
        observer.notify(RunStarted(_summary(loaded, folder)))
        status, step = _run(loaded, shares, recorder)
        return recorder.finish(status, step)


def _recorder(
    run: Loaded,
    folder: RunFolder,
    settings: Mapping[str, Any],
    hashes: Mapping[str, str],
    workflow: Mapping[str, str],
) -> Recorder:
    return Recorder(
        folder,
        run.config,
        run.adapter,
        run.optimizer,
        run.data.family.key_map,
        settings,
        header_facts(run.config, run.data, run.precision, hashes, workflow, run.observer),
        run.observer,
        run.done,
    )


def _load(
    config: RunConfig,
    observer: Observer,
    processes: Processes,
    data: Prepared,
    begin: Checkpoint | AdapterState | None,
    base: str,
) -> Loaded:
    precision = resolve_precision(config.training.precision, processes.device)
    transformer = data.family.load_transformer(data.location, DTYPES[precision], processes.device)
    preservation = _preserve(config, data, transformer, f"{base} {precision}", processes, observer)
    if config.memory.gradient_checkpointing:
        data.family.enable_checkpointing(transformer)
    adapter = attach(
        transformer,
        config.adapter,
        presets=data.family.presets,
        unused=data.family.unused_layers(transformer),
        shared=data.family.shared_inputs,
        seed=config.seed,
    )
    adapter.train()
    # Hours of training must not end at a file that cannot be written.
    check_layouts(adapter.state(), config.output.layouts, data.family.key_map)
    # A decomposition of the base's weights may end otherwise in another process.
    processes.share(list(adapter.frozen_tensors().values()))
    if processes.index == 0:
        _tell_notes(adapter, config.training.optimizer.learning_rate, observer)
    groups = parameter_groups(adapter, config.training.optimizer)
    optimizer = make_optimizer(config.training.optimizer, groups)
    done = 0
    if isinstance(begin, Checkpoint):
        before = stored_groups(begin, adapter, config.training.optimizer)
        restore_tensors(begin, adapter.named_tensors(), optimizer, before)
        done = begin.step
    elif begin is not None:
        taken = start_from(transformer, adapter, begin)
        if processes.index == 0:
            observer.notify(Warned(taken.summary()))
    return Loaded(
        config=config,
        data=data,
        precision=precision,
        transformer=transformer,
        adapter=adapter,
        optimizer=optimizer,
        processes=processes,
        observer=observer,
        done=done,
        steps=run_length(config),
        preservation=preservation,
    )


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


def _tell_notes(adapter: AttachedAdapter, rate: float, observer: Observer) -> None:
    for note in (*adapter.notes, *pace_notes(adapter.plans, rate)):
        observer.notify(Warned(note))
    if adapter.skipped_duplicates:
        observer.notify(
            Warned(
                f"{adapter.skipped_duplicates} matches named a layer that was chosen already; each "
                "layer is adapted once."
            )
        )


def _run(run: Loaded, shares: Shares, recorder: Recorder | None) -> tuple[str, int]:
    loop = _loop(run, shares, recorder)
    if run.config.adapter.init == "eva" and not run.done:
        whole_batches = _step_maker(run, _plan(run), (0, 1))
        if not begin_with_inputs(
            run.adapter, run.config, whole_batches, run.processes, run.observer
        ):
            loop.hooks.save(0)
            return "cancelled", 0
    return loop.run(run.done)


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


def _step_maker(run: Loaded, plan: BatchPlan, part: tuple[int, int]) -> StepMaker:
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
        sample_sigma=_sigma_sampler(run),
        seed=config.seed,
        part=part,
        device=run.processes.device,
    )


def _loop(run: Loaded, shares: Shares, recorder: Recorder | None) -> Loop:
    config, training = run.config, run.config.training
    schedule = make_schedule(training.schedule, run.steps)
    plan = _plan(run)

    def preview(step: int) -> bool:
        stop = run.observer.cancelled
        if recorder is not None:
            with recorder.saved_on_failure(step):
                painter = run.data.painter(run.transformer, run.processes.device)
                deliver = functools.partial(recorder.picture, step)
                draw_previews(painter, config.preview, run.data.prompts, deliver, stop)
        # All end together; the others wait here until the first process has drawn.
        return run.processes.sum_numbers([float(stop())])[0] > 0

    def nothing(_: Any) -> None:
        return

    return Loop(
        settings=training,
        steps=run.steps,
        preview_every=config.preview.every,
        micro_batches=shares.micro_batches,
        micro_step=_step_maker(run, plan, shares.part),
        parameters=run.adapter.parameters(),
        optimizer=run.optimizer,
        learning_rate=lambda step: training.optimizer.learning_rate * schedule(step),
        epoch=plan.epoch,
        processes=run.processes,
        hooks=LoopHooks(
            record=recorder.record if recorder else nothing,
            save=recorder.save if recorder else nothing,
            preview=preview,
            broken=recorder.broken if recorder else _told_elsewhere,
            wishes=run.observer.wishes,
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
        by_shape[data.family.latent_shape(*size)] = make_density(
            sigma.density,
            sigma.mean,
            sigma.std,
            sigma.shift or usual,
            sigma.min,
            sigma.max,
            sigma.mode_scale,
        )
    return lambda batch, generator: by_shape[tuple(batch.latents.shape[1:])](generator)


def _open_folder(
    config: RunConfig,
    found: Path | None,
    checkpoint: Checkpoint | None,
    hashes: Mapping[str, str],
    workflow: Mapping[str, str],
    changes: list[Change],
) -> RunFolder:
    record: dict[str, Any] = {
        "steps": run_length(config),
        "started": time.time(),
        "versions": installed_versions(),
        "hashes": dict(hashes),
    }
    if found is None or checkpoint is None:
        root = Path(config.output.dir) / config.output.name
        return create_version(root, record, dump_config(config), workflow)
    if checkpoint.damaged:
        record["damaged_checkpoints"] = list(checkpoint.damaged)
    folder = open_version(found.parent.parent)
    try:
        require_newest(folder.checkpoints, checkpoint)
        told = recorded_changes(folder.read_record(), changes, int(found.name))
        folder.go_on({**record, "changes": told}, dump_config(config), workflow)
    except BaseException:
        folder.release()
        raise
    return folder


def _hashes(data: Prepared) -> dict[str, str]:
    # The location's identity names the encoders alone, because cached samples depend on no more.
    location = data.location
    settings = [location.identity]
    if location.file is not None:
        # The folder then holds no weights, and the file itself may say how they are used.
        found = file_settings(location, data.family.file)
        settings += [file_identity(location.file), json.dumps(found, sort_keys=True)]
    base = folder_identity(location.folder, ["transformer"], settings)
    return {"base": base, "dataset": data.dataset.identity}


def _summary(run: Loaded, folder: RunFolder) -> RunSummary:
    config = run.config
    return RunSummary(
        family=run.data.family.title,
        base=f"{run.data.location.folder.name} ({run.data.location.variant})",
        device=str(run.processes.device),
        precision=run.precision,
        adapter=f"{config.adapter.kind}, rank {config.adapter.rank}",
        layers=len(run.adapter.names),
        parameters=sum(p.numel() for p in run.adapter.parameters()),
        samples_per_bucket=run.data.samples_per_bucket(),
        steps=run.steps,
        preserved=preservation_summary(config),
        folder=folder.path,
    )


__all__ = ["train"]
