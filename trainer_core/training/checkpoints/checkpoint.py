"""Checkpoints, written, read and pruned: an adapter file that any host loads, and the loop's state.

A checkpoint is a folder that is filled under a temporary name and renamed when every file in it is
on the disk, so one that has its final name is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from torch import Tensor

from ...config import OptimizerSection, ScheduleSection
from ...data.file_memory import hash_file
from ...errors import AdapterFileError, CheckpointError, InputError, NonFiniteError
from ...filesystem.storage import flush_folder, move, storage_error, write_json
from ...filesystem.temporary import remove_leftovers, temporary_beside
from ...filesystem.text_files import read_object
from ...tensors.rounding import all_finite
from ...tensors.safetensors_reader import TensorFile, open_tensors
from ...tensors.safetensors_writer import save_tensors

Kind = TypeVar("Kind", OptimizerSection, ScheduleSection)

FORMAT = 1
ADAPTER_FILE = "adapter.safetensors"
"""The adapter of a checkpoint's step, in its folder."""

_NAME = re.compile(r"\d{6,}")
_STATE = "state.json"
_TENSORS = "training_state.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as read from disk.

    Attributes:
        settings: The settings that decide the run, by YAML path.
        tensors: Adapter and optimizer tensors by name.
        damaged: Later checkpoints of the run that cannot be read, in sentences.
        newest: Step of the run's newest checkpoint when this one was read.
    """

    step: int
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    damaged: tuple[str, ...] = ()
    newest: int = 0


def stored_section(checkpoint: Checkpoint, path: str, section: type[Kind]) -> Kind:
    """The settings of a section that a checkpoint was made with.

    What it does not know is newer than it, and was as it is where nobody has set it.

    Args:
        path: YAML path of the section, such as ``training.schedule``.
    """
    known = {
        name: checkpoint.settings[f"{path}.{name}"]
        for name in section.model_fields
        if f"{path}.{name}" in checkpoint.settings
    }
    return section().model_copy(update=known)


def save_checkpoint(
    folder: Path,
    step: int,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    write_adapter: Callable[[Path], None],
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a checkpoint; one that is there already is kept.

    Args:
        settings: The settings that decide the run, by YAML path, as JSON values.
        facts: What else ``state.json`` keeps, for others than a run that goes on.

    Raises:
        NonFiniteError: When a weight is not finite; nothing is written.
        StorageError: When the disk is full or not writable; older checkpoints are intact.
    """
    target = folder / f"{step:06d}"
    if target.is_dir():
        return target
    for name, tensor in tensors.items():
        if not all_finite(tensor):
            raise NonFiniteError(
                f"{name} is not finite at step {step}",
                "finite weights and optimizer state",
                "Start again with a lower training.optimizer.learning_rate.",
            )
    with temporary_beside(target) as temporary:
        try:
            temporary.mkdir(parents=True)
            save_tensors(temporary / _TENSORS, tensors)
            write_adapter(temporary / ADAPTER_FILE)
            known = {"format": FORMAT, "step": step, "settings": dict(settings)}
            state: dict[str, Any] = {**facts, **known}
            state["sha256"] = _digest(state, temporary / _TENSORS)
            write_json(temporary / _STATE, state)
            flush_folder(temporary)
            move(temporary, target)
            flush_folder(folder)
        except OSError as error:
            raise storage_error(target, error) from error
    return target


def _digest(state: Mapping[str, Any], tensors: Path) -> str:
    """A hash of all that a run goes on from: what ``state.json`` says, and the tensors' file."""
    facts = json.dumps([state["format"], state["step"], state["settings"]])
    return hashlib.sha256(f"{facts}{hash_file(tensors)}".encode()).hexdigest()


def surplus_checkpoints(
    steps: Sequence[int], keep: int, every: int = 0, spared: Collection[int] = ()
) -> list[int]:
    """Which checkpoints give way.

    Args:
        keep: How many of the newest stay.
        every: Those whose step is a multiple of it stay too; 0 for none.
        spared: Steps of those that stay in any case: the best one, and the one that the run was
            told to go on from.

    Returns:
        Their steps, oldest first.
    """
    old = sorted(steps)[:-keep]
    return [step for step in old if step not in spared and not (every and step % every == 0)]


def prune_checkpoints(
    folder: Path, keep: int, every: int = 0, spared: Collection[int] = ()
) -> list[int]:
    """Remove the checkpoints that give way to newer ones, and what a crash left unfinished.

    Args:
        keep: How many of the newest stay.
        every: As of `surplus_checkpoints`, and ``spared`` too.

    Returns:
        The steps whose checkpoints were removed.
    """
    dropped: list[int] = []
    found = {int(path.name): path for path in checkpoint_folders(folder)}
    for path in (found[step] for step in surplus_checkpoints([*found], keep, every, spared)):
        # Renamed first: a checkpoint that is half removed must not look whole.
        # One that is open elsewhere (Windows) stays until the next time.
        with contextlib.suppress(PermissionError), temporary_beside(path) as gone:
            path.rename(gone)
            dropped.append(int(path.name))
    remove_leftovers(folder)
    return dropped


def drop_later_checkpoints(folder: Path, step: int) -> list[int]:
    """Remove the checkpoints of steps that a resumed run makes again.

    Their metrics are cut off as well; kept, they would pass for checkpoints of the new course.

    Returns:
        The steps whose checkpoints were removed.

    Raises:
        StorageError: When one cannot be moved away, such as one that is open (Windows).
    """
    later = [path for path in checkpoint_folders(folder) if int(path.name) > step]
    for path in later:
        with temporary_beside(path) as gone:
            try:
                move(path, gone)
            except OSError as error:
                raise storage_error(path, error) from error
    return [int(path.name) for path in later]


def checkpoint_folders(folder: Path) -> list[Path]:
    """List checkpoints, oldest first; damaged ones too, since each was whole when it was named."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if is_checkpoint(p)), key=lambda p: int(p.name))


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has the name of a checkpoint; it may be damaged."""
    return _NAME.fullmatch(folder.name) is not None and folder.is_dir()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint.

    Returns:
        Its content, tensors on the CPU.

    Raises:
        CheckpointError: When it is not a checkpoint, or damaged.
        InputError: When another version wrote it.
    """

    def refuse(reason: str) -> CheckpointError:
        return CheckpointError(
            f"{folder} cannot be read as a checkpoint ({reason})",
            f"a folder with {_STATE}, {_TENSORS} and adapter.safetensors as they were written",
            "Name another checkpoint with resume=PATH, or start again with resume=none.",
        )

    state = read_object(folder / _STATE, refuse)
    try:
        if state["format"] != FORMAT:
            raise InputError(
                f"{folder} has checkpoint format {state['format']}",
                f"format {FORMAT}",
                "Resume it with the version of Adapter Trainer that wrote it.",
            )
        step, settings = int(state["step"]), dict(state["settings"])
        with open_tensors(folder / _TENSORS) as file:
            tensors = file.read_all()
        wrong = next((name for name, each in tensors.items() if not all_finite(each)), None)
        if wrong is not None:
            raise ValueError(f"{wrong} is not finite")
        if state["sha256"] != _digest(state, folder / _TENSORS):
            raise ValueError("its content is not what was written")
    except AdapterFileError as error:
        raise refuse(error.found) from error
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise refuse(reason) from error
    return Checkpoint(step, settings, tensors)


def read_facts(folder: Path) -> dict[str, Any]:
    """What a checkpoint's ``state.json`` says, as `save_checkpoint` wrote it.

    Raises:
        CheckpointError: When it cannot be read.
    """
    return read_object(
        folder / _STATE,
        lambda reason: CheckpointError(
            f"{folder} cannot be read as a checkpoint ({reason})",
            f"a folder with {_STATE}, as it was written",
            "Leave this checkpoint out: move its folder away.",
        ),
    )


def open_state(folder: Path) -> contextlib.AbstractContextManager[TensorFile]:
    """Open a checkpoint's tensors for the time of a block; each is read when it is asked for."""
    return open_tensors(folder / _TENSORS)


def read_whole_checkpoint(folder: Path, *, user_named: bool) -> tuple[Path, Checkpoint]:
    """Read a checkpoint, or the newest one before it that is not damaged.

    Args:
        user_named: Whether the user named this very one, and wants no other.

    Returns:
        The folder and content of the one that can be read; `Checkpoint.damaged` says what was
        passed over.

    Raises:
        CheckpointError: When none can be read, or the named one is damaged; it names a whole one.
        InputError: When another version wrote it.
    """
    every = checkpoint_folders(folder.parent)
    newest = max((int(path.name) for path in every), default=0)
    # Somebody may have given it another name.
    step = int(folder.name) if is_checkpoint(folder) else 0
    before = [path for path in reversed(every) if int(path.name) < step]
    damaged: list[str] = []
    for path in (folder, *before):
        try:
            checkpoint = read_checkpoint(path)
        except CheckpointError as error:
            if user_named:
                after = [other for other in every if int(other.name) > step]
                raise _with_another(error, (*before, *after)) from error
            damaged.append(error.found)
        else:
            notes = tuple(f"{found}; going on from step {checkpoint.step}." for found in damaged)
            return path, dataclasses.replace(checkpoint, damaged=notes, newest=newest)
    raise CheckpointError(
        f"no checkpoint of {folder.parent} can be read: {'; '.join(damaged)}",
        "at least one that is as it was written",
        "Restore one from a copy, or start again with resume=none.",
    )


def require_newest(folder: Path, checkpoint: Checkpoint) -> None:
    """Make sure that nobody went on with a run between the reading of a checkpoint and the lock.

    Args:
        folder: Folder of the run's checkpoints; the run is locked by this process.

    Raises:
        InputError: When there are newer checkpoints now, which going on would remove.
    """
    newest = max((int(path.name) for path in checkpoint_folders(folder)), default=0)
    if newest > checkpoint.newest:
        raise InputError(
            f"{folder.parent} was taken to step {newest} by another process in the meantime",
            f"step {checkpoint.newest} as its newest checkpoint, as it was a moment ago",
            "Start again: the run then goes on from there.",
        )


def _with_another(error: CheckpointError, others: Iterable[Path]) -> CheckpointError:
    """Say in the error which checkpoint of the run can be read instead."""
    for path in others:
        with contextlib.suppress(InputError):
            read_checkpoint(path)
            return CheckpointError(
                error.found, error.expected, f"Go on from the next one that is whole: resume={path}"
            )
    return error
