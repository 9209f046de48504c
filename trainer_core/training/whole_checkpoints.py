"""Going on from a checkpoint although another one is damaged."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path

from ..errors import CheckpointError, InputError
from .checkpoint import Checkpoint, checkpoint_folders, is_checkpoint, read_checkpoint


def read_whole_checkpoint(folder: Path, *, named: bool) -> tuple[Path, Checkpoint]:
    """Read a checkpoint, or the newest one before it that is not damaged.

    Args:
        folder: The checkpoint's folder.
        named: Whether the user named this very one, and wants no other.

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
            if named:
                after = [other for other in every if int(other.name) > step]
                raise _with_another(error, (*before, *after)) from error
            damaged.append(error.found)
        else:
            told = tuple(f"{found}; going on from step {checkpoint.step}." for found in damaged)
            return path, dataclasses.replace(checkpoint, damaged=told, newest=newest)
    raise CheckpointError(
        f"no checkpoint of {folder.parent} can be read: {'; '.join(damaged)}",
        "at least one that is as it was written",
        "Restore one from a copy, or start anew with resume=none.",
    )


def require_newest(folder: Path, checkpoint: Checkpoint) -> None:
    """Make sure that nobody went on with a run between the reading of a checkpoint and the lock.

    Args:
        folder: Folder of the run's checkpoints; the run is locked by this process.
        checkpoint: What this process read before.

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
                error.found,
                error.expected,
                f"Go on from the next one that is whole: resume={path}",
            )
    return error
