"""What a run starts from: nothing, a checkpoint (resume), or an adapter file (warm start).

A resumed run may differ from the one that made its checkpoint in some settings, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...adapter_files.factors.fuse_layers import refuse_undivided
from ...adapter_files.names.key_layouts import DROP
from ...adapter_files.names.key_map import KeyMap
from ...adapter_files.names.text_encoder_names import text_layers
from ...adapter_files.read.read_adapter import adapter_files
from ...bases.read_family_adapter import read_of_family
from ...config import RunConfig
from ...config.defaults import run_length, with_length
from ...data.file_memory import hash_file
from ...errors import AdapterFileError, ConfigError, InputError, RunError
from ...families.family import Family
from ...types import AdapterState
from ..checkpoints.checkpoint import Checkpoint, read_facts, read_whole_checkpoint
from ..checkpoints.find_checkpoint import find_checkpoint, idle_checkpoints
from ..checkpoints.run_folder import made_longer, read_record, require_open, version_number
from ..checkpoints.settings_changes import (
    FORMAT,
    START,
    Change,
    checkpoint_base_format,
    refuse_changes,
)
from ..observer import Noted, Observer, Warned
from ..step.processes import Processes


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run starts: at a checkpoint, at an adapter file, or at nothing.

    Attributes:
        folder: The checkpoint's folder.
        checkpoint: What the run goes on from.
        adapter: What a run without a checkpoint starts from.
        changes: Settings that are others than the checkpoint's.
    """

    folder: Path | None = None
    checkpoint: Checkpoint | None = None
    adapter: AdapterState | None = None
    changes: tuple[Change, ...] = ()

    def fitted(
        self,
        settings: Mapping[str, Any],
        config: RunConfig,
        family: Family,
        processes: Processes,
        observer: Observer,
    ) -> Start:
        """Compare the checkpoint with the run, when all is known that decides it.

        Args:
            processes: All of them come to the same start.
            observer: Told what has changed, or that a new version starts instead.

        Raises:
            ConfigError: When it does not fit, and ``resume`` wants this one.
            RunError: When the processes differ.
        """
        if self.folder is None or self.checkpoint is None:
            return self
        version = self.folder.parent.parent
        changes = _accepted_changes(
            version, self.checkpoint, settings, config=config, observer=observer
        )
        if changes is None:
            start = Start(adapter=read_start(config, family))
        else:
            start = replace(self, changes=tuple(changes))
        # What decides may differ from machine to machine, such as a precision of auto.
        _require_same(config, processes, start)
        return start


def find_start(config: RunConfig, family: Family, precision: str, processes: Processes) -> Start:
    """Find and read what the run starts from, the same in every process.

    Args:
        processes: The first process decides and the others look afterwards. None of them locks a
            version before all have looked, because a locked one is not found.

    Raises:
        InputError: As `find_checkpoint`, `read_whole_checkpoint` and `read_start`.
        RunError: When the processes found different checkpoints.
    """
    if processes.index > 0:
        processes.barrier()
    folder = find_checkpoint(config, precision)
    if processes.index == 0:
        processes.barrier()
    start = Start()
    if folder is not None:
        require_open(folder.parent.parent)
        named = Path(config.resume).absolute() == folder.absolute()
        start = Start(*read_whole_checkpoint(folder, user_named=named))
    _require_same(config, processes, start)
    return start if start.checkpoint else Start(adapter=read_start(config, family))


def matching_start(
    start: Start,
    settings: Mapping[str, Any],
    config: RunConfig,
    family: Family,
    precision: str,
    processes: Processes,
    observer: Observer,
) -> tuple[Start, RunConfig]:
    """Of all versions of the run's name, go on from the one that the settings belong to.

    ``resume: auto`` takes the one that is as long as was asked, else the newest that only becomes
    longer. The newest of all goes on with another course too, unless it is finished.

    Args:
        processes: All of them come to the same start.
        observer: Told why a new version starts.

    Returns:
        The start, and the run file with the length of a run that was made longer.
    """
    if start.folder is None or start.checkpoint is None:
        return start, config
    version = start.folder.parent.parent
    if config.resume == "auto":
        best = _best_fit(settings, config, precision, observer)
        if best is None:
            start = Start(adapter=read_start(config, family))
        elif best.parent.parent != version:
            require_open(best.parent.parent)
            start = Start(*read_whole_checkpoint(best, user_named=False))
        _require_same(config, processes, start)
    for note in start.checkpoint.damaged if start.checkpoint else ():
        observer.notify(Warned(note))
    # Whoever names a checkpoint may want fewer steps; whoever names a run wants its own.
    own = config.resume == "auto" or Path(config.resume).absolute() == version
    return start, _own_length(start.folder, config) if own and start.folder else config


def _best_fit(
    settings: Mapping[str, Any], config: RunConfig, precision: str, observer: Observer
) -> Path | None:
    ranked: list[tuple[int, int, Path]] = []
    reasons: list[str] = []
    root = Path(config.output.dir) / config.output.name
    for age, folder in enumerate(idle_checkpoints(root, precision)):
        state = None if folder is None else _state(folder)
        if folder is None or state is None:
            continue
        longer = _own_length(folder, config)
        own = {"training.steps": run_length(longer), FORMAT: checkpoint_base_format(state)}
        changes, reason = _fit(folder.parent.parent, state, {**settings, **own}, longer)
        course = any(each.of_course for each in changes)
        if not reason and (age == 0 or not course):
            steps = any(each.setting == "training.steps" for each in changes)
            ranked.append((2 * course + steps, age, folder))
        reasons += [reason] if reason else []
    if not ranked and reasons:
        observer.notify(Noted(reasons[0]))
    return min(ranked)[-1] if ranked else None


def _own_length(checkpoint: Path, config: RunConfig) -> RunConfig:
    return with_length(config, made_longer(checkpoint.parent.parent, run_length(config)))


def _state(folder: Path) -> Checkpoint | None:
    """What a checkpoint says of its run, without its tensors; None where it says nothing."""
    try:
        facts = read_facts(folder)
        return Checkpoint(int(facts["step"]), dict(facts["settings"]), {})
    except (InputError, ValueError, LookupError, TypeError, OverflowError):
        return None


def _accepted_changes(
    version: Path,
    checkpoint: Checkpoint,
    settings: Mapping[str, Any],
    config: RunConfig,
    observer: Observer,
) -> list[Change] | None:
    """Tell what has changed since a checkpoint; None where the run does not go on from it."""
    # Whoever names a checkpoint wants that one; "auto" wants a run that fits the settings.
    if config.resume != "auto":
        changes, reason = refuse_changes(checkpoint, settings, config), ""
    else:
        changes, reason = _fit(version, checkpoint, settings, config)
    if reason:
        observer.notify(Noted(reason))
        return None
    if changes:
        name, changed = f"{version.parent.name}/{version.name}", "; ".join(map(str, changes))
        observer.notify(Noted(f"{name} goes on from step {checkpoint.step} changed: {changed}."))
    return changes


def _fit(
    version: Path, checkpoint: Checkpoint, settings: Mapping[str, Any], config: RunConfig
) -> tuple[list[Change], str]:
    """What has changed since a checkpoint, and why a new version starts; empty where it goes on.

    A run that is not finished goes on with other settings, and so does one that only becomes
    longer; a finished one does not go on learning in another way.
    """
    try:
        changes = refuse_changes(checkpoint, settings, config)
    except ConfigError as error:
        return [], f"A new version starts. {error.found}."
    if not any(each.of_course for each in changes) or not _is_done(version):
        return changes, ""
    name, changed = f"{version.parent.name}/{version.name}", "; ".join(map(str, changes))
    return changes, (
        f"A new version starts, because {name} is finished: {changed}. "
        "resume=latest would go on from its end."
    )


def _is_done(version: Path) -> bool:
    try:
        return read_record(version).get("status") == "done"
    except InputError:
        return False


def start_identity(config: RunConfig, checkpoint: Checkpoint | None) -> str | None:
    """Name the content of the file that the adapter starts from; its path does not count.

    Args:
        checkpoint: What the run would go on from. It holds what the file gave, so the file may be
            gone; it is then taken for the one that the checkpoint knows.

    Returns:
        SHA-256 as 64 hexadecimal digits, and that of PEFT's configuration behind it where the
        adapter has one; None without such a file.

    Raises:
        InputError: When the file is needed and cannot be read.
    """
    if config.adapter.start_from is None:
        return None
    path = Path(config.adapter.start_from)
    known = None if checkpoint is None else checkpoint.settings.get(START)
    if known is not None and not path.exists():
        return known
    if not path.exists():
        raise _no_file(path)
    try:
        return "+".join(hash_file(file) for file in adapter_files(path))
    except OSError as error:
        raise _no_file(path, error.strerror) from error


def read_start(config: RunConfig, family: Family) -> AdapterState | None:
    """Read the adapter that a run without a checkpoint starts from.

    Returns:
        The adapter, or None without ``adapter.start_from``.

    Raises:
        InputError: When the file is absent or cannot be read, or holds what is not a factor.
    """
    if config.adapter.start_from is None:
        return None
    path = Path(config.adapter.start_from)
    if not path.exists():
        raise _no_file(path)
    state = read_of_family(path, family)
    remedy = "Start from a LoRA of it, with adapter.kind: lora."
    whole = KeyMap.is_fused_only
    refuse_undivided(state, family.layers.key_map, "adapter.start_from", remedy, welcome=whole)
    if not config.training.text_encoder.train and (texts := text_layers(state.layers)):
        raise AdapterFileError(
            f"adapter.start_from: {path} has {len(texts)} layers of a text encoder, {texts[0]} "
            "first, and training.text_encoder.train is false",
            "a text encoder that is trained, or an adapter of the denoiser alone",
            f"Set training.text_encoder.train to true, or leave these layers out: {DROP}.",
        )
    if state.extras:
        layer, tensors = next(iter(state.extras.items()))
        raise AdapterFileError(
            f"adapter.start_from: {path} changes {layer}.{next(iter(tensors))}, and "
            f"{len(state.extras)} layer(s) in all, by something that is not a factor",
            "factors alone: biases, norms and whole weights are not trained here",
            "Choose another file, or merge this one into the base and train on the result.",
        )
    return state


def _require_same(config: RunConfig, processes: Processes, start: Start) -> None:
    """Refuse processes that start from different checkpoints; none comes through before all have.

    Raises:
        RunError: In every process, when one has another checkpoint than the first.
    """
    own = [-1.0, -1.0]
    if start.folder is not None and start.checkpoint is not None:
        version = version_number(start.folder.parent.parent)
        own = [float(version), float(start.checkpoint.step)]
    # A sum to which the first process alone adds something is what the first process has.
    first = processes.sum_numbers(own if processes.index == 0 else [0.0, 0.0])
    (others,) = processes.sum_numbers([float(own != first)])
    if others:
        raise RunError(
            f"resume: {config.resume}, and {others:.0f} of {processes.count} processes found "
            f"another checkpoint than the first; process {processes.index} has "
            f"{_place(own)}, the first {_place(first)}",
            "the same checkpoint in every process",
            "Let all processes see the same output.dir, and name the checkpoint with resume=PATH.",
        )


def _no_file(path: Path, reason: str | None = None) -> ConfigError:
    return ConfigError(
        f"adapter.start_from: there is no file {path}"
        + (f" that can be read ({reason})" if reason else ""),
        "an adapter file (.safetensors), or a folder that PEFT saved",
        "Check the path, or leave adapter.start_from out.",
    )


def _place(found: list[float]) -> str:
    return f"step {found[1]:.0f} of v{found[0]:.0f}" if found[1] >= 0 else "none"
