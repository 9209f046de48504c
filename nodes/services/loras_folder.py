"""Adapter files in ComfyUI's loras folder: written in the wanted layout, or copied from a run."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...trainer_core.errors import InputError, TrainerError
from ...trainer_core.filesystem.allowed_folders import AllowedFolders
from ...trainer_core.filesystem.storage import atomic_write, same_content, unlink
from ..host import comfy_host
from ..host.folders import checked_parts, clear_leftovers

if TYPE_CHECKING:
    from torch import Tensor

    from ...trainer_core.families.family import Family
    from ...trainer_core.tensors.safetensors_reader import Source
    from .socket_values import BaseChoice
if TYPE_CHECKING:
    from ...trainer_core.training.observer import CheckpointSaved
    from .panel.run_observer import NodeObserver

_SUFFIX = ".safetensors"
_MOST_COPIES = 10_000


class AdapterTensors(dict[str, "Tensor"]):
    """An adapter of the graph, core's LORA_MODEL, that remembers the strings of its file's header.

    Names alone do not always tell the family; the header does.
    """

    def __init__(self, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self.header = dict(header)


class WrittenFile(NamedTuple):
    """An adapter in the loras folder.

    Attributes:
        path: The file or folder.
        notes: What the conversion lost or changed, in one line; empty when nothing.
        new: Whether it was written; else a file with the same bytes was there.
    """

    path: Path
    notes: str
    new: bool


def write_adapter_files(
    source: Path | Mapping[str, Tensor], name: str, layout: str, **options: Any
) -> dict[str, WrittenFile]:
    """As `write_adapter_file`, also of a file that holds the adapters of two experts.

    Gives name to file: one, or that of each expert, the one for high noise first.
    """
    from ...trainer_core.adapter_files.read.expert_parts import experts_of
    from ...trainer_core.adapter_files.read.read_adapter import adapter_weights

    parts = experts_of(adapter_weights(as_source(source)))
    named = {f"{name.removesuffix(_SUFFIX)}_{expert}": part for expert, part in parts.items()}
    return {
        own: write_adapter_file(part, own, layout, **options)
        for own, part in (named or {name: source}).items()
    }


def write_adapter_file(
    source: Source | Mapping[str, Tensor],
    name: str,
    layout: str,
    *,
    overwrite: bool,
    family: str = "auto",
    fused: bool = False,
    dtype: str = "keep",
    approximate: str = "none",
    rank: int = 0,
    extras: str = "keep",
    base: BaseChoice | None = None,
) -> WrittenFile:
    """Read an adapter and write it into the loras folder, unless a file of its name is the same.

    Args:
        source: A file, or tensors by key.
        name: Name of the new file, without its ending; of layout ``peft`` of the new folder.
        overwrite: Whether to replace a file of this name.
        family: A family's name, or ``auto``.
        fused: Whether q, k and v are written as ComfyUI's one layer.
        dtype: ``fp32``, ``bf16``, ``fp16``, or ``keep`` for the source's.
        approximate: ``lora``, ``lokr``, or ``none``.
        rank: The most that the rank of an approximation may be; 0 for none given.
        extras: ``keep`` or ``drop``, for differences that are not factors.
        base: The base, where something needs its weights.

    Raises:
        InputError: When the name leads elsewhere, or the adapter cannot be read or written so.
        StorageError: When the file cannot be written.
    """
    from ...trainer_core.adapter_files.convert.convert import convert

    target, others = _target(name, layout, overwrite=overwrite)
    clear_leftovers(target.parent)
    readable = as_source(source)
    found, weight_of = _family_of(readable, None if family == "auto" else family, base)
    report = convert(
        readable,
        target,
        layout,
        found.layers.key_map,
        dtype=None if dtype == "keep" else dtype,
        fused=fused,
        approximate=None if approximate == "none" else approximate,
        rank=rank or None,
        weight_of=weight_of,
        extras="drop" if extras == "drop" else "keep",
        overwrite=overwrite,
    )
    notes = ". ".join((*report.notes, *report.differences()))
    for each in others:
        if same_content(each, target):
            unlink(target)
            return WrittenFile(each, notes, new=False)
    return WrittenFile(target, notes, new=True)


def written_text(file: WrittenFile, name: str, step: int = 0) -> str:
    """What a node says of the file that it has written.

    A number behind the `name` that it was to have says that there was one; `step` is 0 where nobody
    knows how long the adapter was trained.
    """
    path = file.path
    trained = f", trained {step} steps" if step else ""
    place = path.relative_to(comfy_host.loras_folder()).as_posix()
    if not file.new:
        return f"{place} is there already, the same{trained}: nothing was written."
    text = f"Wrote {place}{trained}."
    first = check_file_name(name)[-1]
    if path.name.removesuffix(_SUFFIX) == first:
        return text
    return f"{text} {first} was there already: overwrite would replace it."


def conversion_text(files: Mapping[str, WrittenFile]) -> str:
    """What Convert Adapter says of its files, by the names that they were to have."""
    texts = (f"{written_text(file, name)} {file.notes}".strip() for name, file in files.items())
    text = " ".join(texts)
    if len(files) > 1:
        text += " The outputs are those of the first, for high noise; load each on its own MODEL."
    return text


def weights_file(path: Path) -> Path:
    """The file with the tensors of a written adapter, which is a folder in layout ``peft``."""
    from ...trainer_core.adapter_files.read.peft_config import WEIGHTS_NAME

    return path / WEIGHTS_NAME if path.is_dir() else path


def as_source(lora: Source | Mapping[str, Tensor]) -> Source:
    """What the trainer reads an adapter from: a file, or an adapter of the graph as it is.

    Tensors of this pack's nodes have a header too.
    """
    from ...trainer_core.tensors.safetensors_reader import HeldTensors

    if not isinstance(lora, Mapping):
        return lora
    return HeldTensors("the lora", lora, lora.header if isinstance(lora, AdapterTensors) else {})


def adapter_tensors(path: Path) -> AdapterTensors:
    """Read a file in layout comfyui as core's LORA_MODEL: ordinary tensors on the CPU."""
    import torch

    from ...trainer_core.tensors.safetensors_reader import open_tensors

    with torch.inference_mode(False), open_tensors(path) as file:
        return AdapterTensors(file.read_all(), file.metadata)


def _family_of(
    adapter: Source, family: str | None, base: BaseChoice | None
) -> tuple[Family, Callable[[str], Tensor] | None]:
    """The family, and the base's weights where there is one: that one tells the family."""
    from ...trainer_core.bases.adapter_family import adapter_family, require_base
    from ...trainer_core.bases.base_weights import open_base

    if base is None:
        return adapter_family(adapter, family), None
    if base.model is not None:
        raise InputError(
            "base: a model of the graph",
            "nothing, or a base of files whose weights are read",
            "Leave base open; to use a base's weights, connect Load Training Base.",
        )
    opened = open_base(base.values["path"], family)
    require_base(adapter, opened)
    return opened.family, opened.weight


def check_file_name(name: str) -> tuple[str, ...]:
    """The parts of a new file's name in the loras folder; `InputError` for one outside."""
    return checked_parts(unicodedata.normalize("NFC", name.removesuffix(_SUFFIX)), "name")


def place_of_copy(source: Path, name: str) -> Path:
    """A file of the loras folder with this name or a number behind it: the copy, or a new one."""
    target, others = _target(name, "comfyui", overwrite=False)
    return next((each for each in others if same_content(each, source)), target)


def _target(name: str, layout: str, *, overwrite: bool) -> tuple[Path, list[Path]]:
    """Where to write, and the files of that name that are there and stay."""
    parts = check_file_name(name)
    suffix = "" if layout == "peft" else _SUFFIX
    root = comfy_host.loras_folder()
    folder = root.joinpath(*parts[:-1])
    if not AllowedFolders([root]).holds(folder):
        raise InputError(
            f"name: {name} leads out of the loras folder through a link",
            "a folder that lies there itself",
            "Choose another name.",
        )
    first = folder / f"{parts[-1]}{suffix}"
    if overwrite or not first.exists():
        return first, []
    others = [first]
    for number in range(2, _MOST_COPIES):
        path = folder / f"{parts[-1]}_{number}{suffix}"
        if not path.exists():
            return path, others
        others.append(path)
    raise InputError(
        f"name: {name} is taken {_MOST_COPIES} times", "a free name", "Choose another."
    )


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
