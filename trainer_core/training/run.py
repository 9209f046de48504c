"""`train`: a whole training, from a run file to an adapter file: plans memory, loads, trains."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..adapters.layer_list import adapted_layers, layer_kinds
from ..bases.distilled import distilled_note
from ..config import MemorySection, RunConfig
from ..config.defaults import fitted_warmup, preservation_summary, resolved_length, run_length
from ..config.read_run_file import dump_config
from ..data.cache.build_cache import cache_folder
from ..data.describe_epoch import describe_plan
from ..device import (
    borrowed_attention,
    borrowed_random_state,
    borrowed_threads,
    made_current,
    refused_pins,
    release_memory,
    resolve_device,
    resolve_precision,
    unused_gpu,
)
from ..families.family import Family
from ..families.registry import get_family
from ..families.trainable_text import with_text
from ..filesystem.allowed_folders import AllowedFolders
from ..filesystem.storage import require_folder
from ..inference.encoder_source import MakeSource
from ..inference.sampler import preview_rate, size_note
from ..offload.machine import Machine
from ..requirements import installed_versions
from ..types import RunResult, RunSummary
from .checkpoints.base_adapter_marks import base_adapter_marks, in_words
from .checkpoints.checkpoint import require_newest
from .checkpoints.longer_run import SCHEDULE
from .checkpoints.run_folder import ASKED, RunFolder, create_version, open_version
from .checkpoints.settings_changes import compared_settings, recorded_changes
from .memory.device_errors import explain_device_errors
from .observer import (
    Noted,
    Observer,
    RunCancelledError,
    RunFinished,
    RunStarted,
    SilentObserver,
    Warned,
)
from .prepare.encode_dataset import Prepared, content_hashes, prepare
from .recorder import Recorder, run_header
from .setup.load import Loaded, load
from .setup.plan_memory import plan_memory
from .setup.refusals import require_possible, require_resumable, require_trainable
from .setup.starting_point import Start, find_start, matching_start, start_identity
from .setup.step_inputs import batch_plan, describe_levels, require_trained
from .step.processes import Processes, SingleProcess, cancel_together
from .train_loaded import course_of, train_loaded


def train(
    config: RunConfig,
    observer: Observer | None = None,
    processes: Processes | None = None,
    make_source: MakeSource | None = None,
    workflow: Mapping[str, str] | None = None,
    within: AllowedFolders | None = None,
    machine: Machine | None = None,
    family: Family | None = None,
) -> RunResult:
    """Train an adapter.

    Args:
        observer: Hears the run's events and may cancel it.
        processes: The processes that share the run; unset: this one alone, on ``memory.device``.
        make_source: Gives text and image encoders; unset: they come from the base's folder.
        workflow: What of the host started the run, as `workflow_texts` gives it; kept with the run
            and, at ``output.metadata: full``, in its adapter files.
        within: What dataset, cache and the run's own folder really have to lie in, for a run file
            that is not the user's own; None follows every link.
        machine: What the run may take of the computer; unset: all that is free.
        family: The base's family, where the caller made it, as for a model that it has in memory;
            unset: the one that the run file names.

    Returns:
        Where the files are; ``status`` is ``done`` or ``cancelled``. Of a run that was cancelled
        before it had a folder it is the cache's folder, without an adapter.

    Raises:
        InputError: When the run file, dataset or base cannot be used; nothing was started.
        RunError: When the run failed; the last good state is on disk.
    """
    observer = observer or SilentObserver()
    processes = processes or SingleProcess(resolve_device(config.memory.device))
    embedded = config.base.path == "embedded"
    with (
        # Also when it begins and ends: a GPU that has stopped refuses all.
        explain_device_errors("the run"),
        borrowed_threads(config.memory, embedded=embedded),
        made_current(processes.device),
        borrowed_random_state(processes.device),
        borrowed_attention(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        refused_pins.clear()
        try:
            if within is not None:
                within.require_all(Path(config.output.dir) / config.output.name, "output.name")
            return _train(
                config,
                family=(family or get_family(config.family)).of_base(config.base),
                observer=observer,
                processes=processes,
                make_source=make_source,
                workflow=workflow or {},
                within=within,
                machine=machine or Machine(),
            )
        except RunCancelledError:
            result = RunResult(
                cache_folder(config), "cancelled", 0, adapters=(), pictures=(), losses=()
            )
            if processes.index == 0:
                observer.notify(RunFinished(result))
            return result
        finally:
            release_memory(processes.device)


def _train(
    config: RunConfig,
    *,
    family: Family,
    observer: Observer,
    processes: Processes,
    make_source: MakeSource | None,
    workflow: Mapping[str, str],
    within: AllowedFolders | None,
    machine: Machine,
) -> RunResult:
    # What can be refused without loading anything is refused first.
    first_observer = observer if processes.index == 0 else SilentObserver()
    require_possible(config, family, processes)
    if config.base.path != "embedded" and (note := unused_gpu(config.memory.device)):
        first_observer.notify(Warned(note))
    precision = resolve_precision(config.training.precision, processes.device)
    start = find_start(config, family, precision, processes)
    require_resumable(config, family, precision, start=start, processes=processes)
    if processes.index == 0:
        root = Path(config.output.dir) / config.output.name
        require_folder(root if start.folder is None else start.folder.parent.parent)

    check = functools.partial(require_trainable, config, family, start=start.adapter)
    data = prepare(
        config,
        observer,
        processes,
        make_source=make_source,
        within=within,
        machine=machine,
        family=family,
        check=check,
    )
    require_trained(config, data.dataset)
    config = _fitted(config, data, first_observer)

    hashes = content_hashes(data)
    marks = base_adapter_marks(config.base)
    settings = compared_settings(
        with_text(config),
        precision,
        hashes["base"],
        dataset=hashes["dataset"],
        start=start_identity(config, start.checkpoint),
        source=data.dataset.source,
        adapters=marks,
    )
    requested_steps = run_length(config)
    start, config = matching_start(
        start,
        settings,
        config,
        family=data.family,
        precision=precision,
        processes=processes,
        observer=first_observer,
    )
    settings = {**settings, "training.steps": run_length(config)}
    planned = plan_memory(
        with_text(config),
        data,
        precision,
        start=start,
        settings=settings,
        processes=processes,
        observer=observer,
        machine=machine,
    )
    start = planned.start
    cancel_together(processes, observer.cancelled())

    with contextlib.ExitStack() as at_end:
        run = load(
            planned.config,
            observer=observer,
            processes=processes,
            data=data,
            precision=precision,
            start=start,
            # What the base makes depends on all that is part of it.
            base=" ".join(
                [hashes["base"], *(f"{m['sha256']} {m['strength']} {m['when']}" for m in marks)]
            ),
            machine=machine,
            at_end=at_end,
            pace=planned.pace,
            may_grow=config.memory.blocks_to_swap is None,  # the user has not said how many
        )
        if processes.index > 0:
            status, step = train_loaded(run, None)
            return RunResult(
                Path(config.output.dir), status, step, adapters=(), pictures=(), losses=()
            )
        memory = planned.config.memory
        header = run_header(
            planned.recorded,
            data,
            precision,
            hashes=hashes,
            workflow=workflow,
            observer=observer,
            base_adapters=marks,
        )
        # The run file keeps the user's words, so that another machine may choose anew.
        folder = at_end.enter_context(
            _open_folder(
                config,
                start,
                hashes,
                workflow=workflow,
                memory=memory,
                requested_steps=requested_steps,
            )
        )
        recorder = Recorder(
            folder,
            config,
            run.state,
            key_map=data.family.layers.key_map,
            settings={**planned.settings, SCHEDULE: run.replanned},
            header=header,
            observer=observer,
            frame_rate=preview_rate(config, data.family),
            course=course_of(run),
        )
        at_end.callback(recorder.close)
        observer.notify(RunStarted(_summary(run, folder)))
        return recorder.finish(*train_loaded(run, recorder))


def _fitted(config: RunConfig, data: Prepared, observer: Observer) -> RunConfig:
    """Fill in what base and dataset decide, and say what is not as the run file has it."""
    config = data.family.with_noise(config)
    config, warmup = fitted_warmup(resolved_length(config, data.dataset.own_images))
    levels = data.family.prediction.levels_note(config)
    sizes = size_note(config.preview, data.family, data.location) if config.preview.every else ""
    for note in (levels, warmup, sizes, distilled_note(config.base, data.family, data.location)):
        if note:
            observer.notify(Noted(note))
    return config


_PLANNED = {
    "base_format",
    "blocks_to_swap",
    "swap_slots",
    "master",
    "blocks_to_checkpoint",
    "checkpoint_inputs",
}
"""Memory settings as the run takes them, which ``run.json`` keeps."""


def _open_folder(
    config: RunConfig,
    start: Start,
    hashes: Mapping[str, str],
    workflow: Mapping[str, str],
    memory: MemorySection,
    requested_steps: int,
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
        before = folder.read_record()
        changes = recorded_changes(before, start.changes, int(found.name))
        if config.resume != "auto":
            requested_steps = before.get(ASKED, before.get("steps", requested_steps))
        record |= {"changes": changes, ASKED: requested_steps}
        folder.go_on(record, dump_config(config), workflow)
    except BaseException:
        folder.release()
        raise
    return folder


def _with(config: RunConfig) -> str:
    named = [
        {"name": Path(each.path).name, "strength": each.strength, "when": each.when}
        for each in config.base.adapters
        if each.strength
    ]
    return f" with {in_words(named)}" if named else ""


def _summary(run: Loaded, folder: RunFolder) -> RunSummary:
    config = run.config
    return RunSummary(
        family=run.data.family.title,
        base=f"{run.data.location.folder.name} ({run.data.location.variant}){_with(config)}",
        device=str(run.processes.device),
        precision=run.precision,
        adapter=f"{config.adapter.kind}, rank {config.adapter.rank}",
        layers=len(run.state.adapter.names),
        parameters=sum(p.numel() for p in run.state.adapter.parameters()),
        samples_per_bucket=run.data.samples_per_bucket(),
        steps=run.steps,
        preserved=preservation_summary(config),
        folder=folder.path,
        plan=[*describe_plan(batch_plan(run)), *describe_levels(run)],
        adapted=layer_kinds(adapted_layers(run.state.adapter)),
    )
