"""Checkpoints: an adapter file that any host loads, and all that the loop needs to go on.

A checkpoint is a folder that is filled under a temporary name and renamed when every file in it is
on the disk, so one that has its final name is whole.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InputError, NonFiniteError
from ..storage import flush_folder, move, save_tensors, storage_error, write_json
from .optimizer import load_optimizer_tensors, optimizer_tensors

if TYPE_CHECKING:
    from ..adapters.groups import ParameterGroup

FORMAT = 1
_ADAPTER_PREFIX = "adapter."
_NAME = re.compile(r"\d{6,}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as read from disk.

    Attributes:
        step: Steps made.
        settings: The settings that decide the run, by YAML path.
        tensors: Adapter and optimizer tensors by name.
    """

    step: int
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def save_checkpoint(
    folder: Path,
    step: int,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    write_adapter: Callable[[Path], None],
) -> Path:
    """Write a checkpoint; one that is there already is kept.

    Args:
        folder: Folder of the run's checkpoints.
        step: Steps made.
        settings: The settings that decide the run, by YAML path, as JSON values.
        tensors: What `training_tensors` gave.
        write_adapter: Writes the adapter file to the path that it is given.

    Returns:
        The checkpoint's folder.

    Raises:
        NonFiniteError: When a weight is not finite; nothing is written.
        StorageError: When the disk is full or not writable; older checkpoints are intact.
    """
    target = folder / f"{step:06d}"
    if target.is_dir():
        return target
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise NonFiniteError(
                f"{name} is not finite at step {step}",
                "finite weights and optimizer state",
                "Start again with a lower training.optimizer.learning_rate.",
            )
    temporary = folder / f".writing-{uuid.uuid4().hex}"
    try:
        temporary.mkdir(parents=True)
        save_tensors(temporary / "training_state.safetensors", tensors)
        write_adapter(temporary / "adapter.safetensors")
        state = {"format": FORMAT, "step": step, "settings": dict(settings)}
        write_json(temporary / "state.json", state)
        flush_folder(temporary)
        move(temporary, target)
        flush_folder(folder)
    except OSError as error:
        raise storage_error(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints, and what a crash left unfinished.

    Args:
        folder: Folder of the run's checkpoints.
        keep: How many stay.
    """
    for path in checkpoint_folders(folder)[:-keep]:
        # Renamed first: a checkpoint that is half removed must not look whole.
        # One that is open elsewhere (Windows) stays until the next time.
        with contextlib.suppress(PermissionError):
            path.rename(folder / f".removing-{uuid.uuid4().hex}")
    for pattern in (".removing-*", ".writing-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def drop_later_checkpoints(folder: Path, step: int) -> list[int]:
    """Remove the checkpoints of steps that a resumed run makes again.

    Their metrics are cut off as well; kept, they would pass for checkpoints of the new course.

    Args:
        folder: Folder of the run's checkpoints.
        step: The step that the run goes on from.

    Returns:
        The steps whose checkpoints were removed.

    Raises:
        StorageError: When one cannot be moved away, such as one that is open (Windows).
    """
    later = [path for path in checkpoint_folders(folder) if int(path.name) > step]
    for path in later:
        try:
            move(path, folder / f".removing-{uuid.uuid4().hex}")
        except OSError as error:
            raise storage_error(path, error) from error
    return [int(path.name) for path in later]


def checkpoint_folders(folder: Path) -> list[Path]:
    """List whole checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    found = (p for p in folder.iterdir() if _NAME.fullmatch(p.name))
    return sorted((p for p in found if (p / "state.json").is_file()), key=lambda p: int(p.name))


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint.

    Args:
        folder: The checkpoint's folder.

    Returns:
        Its content, tensors on the CPU.

    Raises:
        InputError: When it is not a checkpoint, or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(str(folder / "training_state.safetensors"))
        step, settings, found = int(state["step"]), dict(state["settings"]), state["format"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(
            f"{folder} cannot be read as a checkpoint ({error})",
            "a folder with state.json, training_state.safetensors and adapter.safetensors",
            "Name another checkpoint with resume=PATH, or start anew with resume=none.",
        ) from error
    if found != FORMAT:
        raise InputError(
            f"{folder} has checkpoint format {found}",
            f"format {FORMAT}",
            "Resume it with the version of Adapter Trainer that wrote it.",
        )
    return Checkpoint(step, settings, tensors)


def training_tensors(
    adapter: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Collect the adapter's exact weights, frozen ones too, and the optimizer's state."""
    weights = {f"{_ADAPTER_PREFIX}{name}": each.detach() for name, each in adapter.items()}
    return weights | optimizer_tensors(optimizer)


def restore_tensors(
    checkpoint: Checkpoint,
    adapter: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    groups: Sequence[ParameterGroup] | None = None,
) -> None:
    """Put the tensors of a checkpoint back, bit by bit.

    Args:
        checkpoint: What `read_checkpoint` gave.
        adapter: The adapter's tensors by name, frozen ones too.
        optimizer: The optimizer over those that are trained.
        groups: The groups that its parameters were sorted into when the checkpoint was made;
            unset: the same as now.

    Raises:
        InputError: When the checkpoint holds another adapter.
    """
    prefix = len(_ADAPTER_PREFIX)
    stored = {
        name[prefix:]: tensor
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(_ADAPTER_PREFIX)
    }
    wrong = sorted(stored.keys() ^ adapter.keys())
    wrong += [n for n in stored.keys() & adapter.keys() if stored[n].shape != adapter[n].shape]
    if wrong:
        raise InputError(
            f"the checkpoint's adapter differs from this run's at {wrong[0]} "
            f"and {len(wrong) - 1} other tensors",
            "the same layers and shapes",
            "Resume with the run file that the checkpoint was made with (run.yaml beside it).",
        )
    with torch.no_grad():
        for name, tensor in adapter.items():
            tensor.copy_(stored[name])
    load_optimizer_tensors(optimizer, checkpoint.tensors, groups)
