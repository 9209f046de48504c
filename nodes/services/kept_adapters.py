"""Adapters of a run's checkpoints in the loras folder, to be compared with Load LoRA."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...trainer_core.errors import InputError, TrainerError
from ...trainer_core.filesystem.storage import atomic_write
from .adapter_files import place_of_copy

if TYPE_CHECKING:
    from ...trainer_core.training.observer import CheckpointSaved
    from .panel import NodeObserver

_ADAPTER = "adapter.safetensors"


def copy_adapter(checkpoint: Path, name: str, step: int) -> Path:
    """Copy the adapter of a run's checkpoint into the loras folder; a file that is there stays.

    Raises:
        InputError: When there is no such checkpoint any more.
        StorageError: When it cannot be written.
    """
    source = checkpoint / _ADAPTER
    if not source.is_file():
        raise InputError(
            f"the checkpoint of step {step} gave way to newer ones",
            "a checkpoint that is on the disk",
            "Choose another one in Load Run.",
        )
    target = place_of_copy(source, f"{name}_step_{step:06d}")
    if not target.exists():
        atomic_write(target, partial(shutil.copyfile, source))
    return target


class LoraKeeper:
    """Copies the adapter of every n-th checkpoint; nothing there is ever replaced or removed.

    Args:
        name: The run's name; the files are called ``<name>_step_000500.safetensors``.
        every: n, at least 1.
        steps: Between two checkpoints; 0 when only the last one is saved.
    """

    def __init__(self, name: str, every: int, steps: int) -> None:
        self._name = name
        self._spacing = every * steps if every > 1 else 1
        self._kept: list[str] = []
        self._told = ""

    def keep(self, saved: CheckpointSaved, observer: NodeObserver) -> None:
        """Copy the adapter of a checkpoint if it is its turn, and say so on the node."""
        if self._spacing == 0 or saved.step % self._spacing:
            return
        try:
            target = copy_adapter(saved.folder, self._name, saved.step)
        except (TrainerError, OSError) as error:
            # The run itself is well, and its checkpoint is on disk.
            reason = error.found if isinstance(error, TrainerError) else str(error)
            observer.warn(f"Step {saved.step} was not copied to the loras folder: {reason}.")
            return
        self._kept.append(target.name)
        files = ", ".join(self._kept)
        message = f"In the loras folder; Load LoRA lists them after a refresh (key R): {files}."
        observer.note(message, instead_of=self._told)
        self._told = message
