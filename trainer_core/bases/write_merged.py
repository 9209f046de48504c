"""Write a base with adapters merged into it, of the same form as the base that was given."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from ..filesystem.storage import atomic_write, flush_folder, move, name_taken_error, storage_error
from ..filesystem.temporary import set_aside, temporary_beside
from ..tensors.rounding import Loss, rounded
from ..tensors.safetensors_writer import Outline, TensorInfo, rewrite_tensors, stream_tensors
from ..types import AdapterState
from ..weights.diffusers_folder import read_json, weight_files
from ..weights.header import OTHER_FILE, read_header
from ..weights.tensor_reader import TensorReader
from .base_weights import BaseFile, BaseWeights
from .merge import Job, Merged, MergeReport, Progress, Rounding, made_tensors, plan_jobs

DTYPES = {"keep": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""What the weights of a merged base may be stored in."""

_NOTE = "_quantization_metadata"
_FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
_SMALL = 1 << 20
_INDEX = "diffusion_pytorch_model.safetensors.index.json"


def merge_into_base(
    base: BaseWeights,
    adapters: Sequence[tuple[AdapterState, float]],
    target: Path,
    dtype: str = "keep",
    rounding: Rounding = "stochastic",
    progress: Progress | None = None,
    *,
    replace: bool = True,
) -> MergeReport:
    """Write a base in which adapters have become part of the weights.

    The change of every adapter is computed from the base as it is given, and the changes are added
    up; the sum is rounded once. Whatever no adapter changes is copied byte by byte.

    Args:
        adapters: Each adapter and the strength that it is merged with.
        target: The new file, or for a Diffusers folder the new folder.
        dtype: ``keep``: every tensor in the number format that it has, 8-bit ones with a scale
            that fits. ``fp32``, ``bf16`` or ``fp16``: all weights of the denoiser in that one.
        rounding: How results in 8 bits are rounded: ``stochastic``, up or down by chance, which
            keeps a small change on the mean, or ``nearest``.
        progress: Is told of every layer.
        replace: Whether what has the name is replaced, also if it came in the meantime.

    Returns:
        What was done, and what rounding took from each layer's change.

    Raises:
        AdapterError: When an adapter does not fit the base; nothing is written then.
        BaseModelError: When the base cannot be read, or its weights are packed.
        NonFiniteError: When a result is not finite; nothing is written then.
        InputError: When something has the name and is not to be replaced.
        StorageError: When the target cannot be written; what was there stays.
    """
    jobs = plan_jobs(base, adapters)
    if not jobs:
        raise InputError(
            "adapters without layers", "at least one layer to merge", "Name another adapter."
        )
    _refuse_packed(base)
    work = _Work(jobs, DTYPES[dtype], rounding, progress=progress, replace=replace)
    if base.is_folder:
        _write_folder(base, target, work)
    else:
        _write_file(base.files[0], base.family.files.single_file.markers, target, work)
    stored = sorted(set(work.stored.values()))
    return MergeReport(
        target,
        base.family.name,
        dict(work.losses),
        rescaled=tuple(work.rescaled),
        stored=tuple(stored),
    )


def _refuse_packed(base: BaseWeights) -> None:
    for file in base.files:
        for name, packed in file.weights.packed.items():
            raise file.weights.broken(
                f"{name} is packed as {packed.stored.name}, which is read and not written",
                "a base to merge into in bf16, fp16, fp32, fp8_e4m3fn or fp8_scaled",
                OTHER_FILE,
            )


@dataclasses.dataclass(slots=True)
class _Work:
    """The tensors to be made, and what is known of those that are."""

    jobs: Mapping[tuple[Path, str], Sequence[Job]]
    dtype: torch.dtype | None
    rounding: Rounding
    progress: Progress | None
    replace: bool
    losses: dict[str, Loss] = dataclasses.field(default_factory=dict)
    rescaled: list[str] = dataclasses.field(default_factory=list)
    stored: dict[str, str] = dataclasses.field(default_factory=dict)

    def names(self, file: BaseFile) -> list[str]:
        """The tensors of a file that get other values."""
        return [name for path, name in self.jobs if path == file.path]

    def made(self, file: BaseFile, name: str | None = None) -> Iterator[tuple[str, Merged]]:
        """Make the tensors of a file, or one of them, and keep the record."""
        own = {key: jobs for key, jobs in self.jobs.items() if name in (None, key[1])}
        for made, merged in made_tensors(own, file, self.dtype, self.rounding):
            self.losses |= merged.losses
            self.rescaled += merged.losses if merged.rescaled else ()
            self.stored[made] = str(merged.values.dtype).removeprefix("torch.")
            if self.progress is not None:
                total = sum(len(jobs) for jobs in self.jobs.values())
                self.progress(len(self.losses), total, next(iter(merged.losses)))
            yield made, merged


def _write_file(file: BaseFile, markers: frozenset[str], target: Path, work: _Work) -> None:
    if work.dtype is not None:
        _write_recast(file, markers, target, work)
        return
    tensors, scales = file.weights.tensors, file.formats.scales
    replaced = [tensors[name] for name in work.names(file)]
    replaced += [tensors[scales[name]] for name in work.names(file) if name in scales]

    def made() -> Iterator[tuple[TensorInfo, Tensor]]:
        for name, merged in work.made(file):
            yield tensors[name], merged.values
            if merged.scale is not None:
                yield tensors[scales[name]], merged.scale

    def write(path: Path) -> None:
        rewrite_tensors(file.path, path, replaced, made())

    atomic_write(target, write, replace=work.replace)


def _write_recast(file: BaseFile, markers: frozenset[str], target: Path, work: _Work) -> None:
    """Write all weights of the denoiser in one number format, without scales and their notes."""
    infos, metadata = read_header(file.path)
    own = {info.key: name for name, info in file.weights.tensors.items()}
    everything = dataclasses.replace(file.weights, prefix="", tensors=infos)
    raw = TensorReader(everything, file.formats, torch.device("cpu"))
    reader = TensorReader(file.weights, file.formats, torch.device("cpu"))
    changed = set(work.names(file))
    dtype = work.dtype
    assert dtype is not None
    outlines: dict[str, Outline] = {}
    makers: dict[str, Callable[[], Tensor]] = {}

    def recast(name: str, rows: int) -> Tensor:
        return rounded(reader.read(name, [(0, rows)], torch.float32)[0], dtype)

    for key in sorted(infos, key=lambda key: infos[key].start):
        name, info = own.get(key), infos[key]
        if name in file.formats.beside and name not in markers:
            continue
        weight = name is not None and name not in markers and info.code in _FLOATS and info.shape
        if name in changed:
            makers[key] = lambda name=name: next(work.made(file, name))[1].values
        elif weight:
            makers[key] = lambda name=name, rows=info.shape[0]: recast(str(name), rows)
        else:
            makers[key] = lambda key=key: raw.stored(key)
        outlines[key] = Outline(dtype if weight else raw.format_of(key), info.shape)
    metadata.pop(_NOTE, None)
    tensors = ((key, make()) for key, make in makers.items())
    stream_tensors(target, outlines, tensors, metadata, replace=work.replace)


def _write_folder(base: BaseWeights, target: Path, work: _Work) -> None:
    """Write a whole Diffusers folder beside the target, then give it the target's name."""
    with temporary_beside(target) as temporary:
        try:
            part = base.files[0].path.parent.name
            _copy_parts(base.path, temporary, part)
            for file in base.files:
                place = temporary / part / file.path.name
                _write_file(file, base.family.files.single_file.markers, place, work)
            _update_index(temporary / part)
            _name_folder(temporary, target, replace=work.replace)
            flush_folder(target.parent)
        except OSError as error:
            raise storage_error(target, error) from error


def _copy_parts(source: Path, target: Path, made: str) -> None:
    """Copy what ``model_index.json`` names, but for the weights that are made again."""
    parts = [name for name, value in read_json(source / "model_index.json").items() if value]
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and path.name in parts:
            skip = _weights_of if path.name == made else None
            shutil.copytree(path, target / path.name, ignore=skip)
        elif path.is_file() and path.stat().st_size <= _SMALL:
            shutil.copyfile(path, target / path.name)


def _weights_of(folder: str, names: list[str]) -> list[str]:
    """Weights in any format, and indices of other precisions than the one that is merged."""
    del folder
    endings = (".safetensors", ".bin", ".pt", ".ckpt", ".msgpack", ".h5", ".index.json")
    return [name for name in names if name.endswith(endings) and name != _INDEX]


def _update_index(folder: Path) -> None:
    """Put the new size into the shards' index where another number format changed it."""
    path = folder / _INDEX
    if not path.is_file():
        return
    index = read_json(path)
    infos = [info for name in weight_files(path) for info in read_header(folder / name)[0].values()]
    size = sum(info.size for info in infos)
    facts = index.get("metadata")
    if isinstance(facts, dict) and facts.get("total_size") not in (None, size):
        facts["total_size"] = size
        path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _name_folder(temporary: Path, target: Path, *, replace: bool) -> None:
    """Give a folder its name; the one that had it goes only when the new one is in its place."""
    if replace and target.exists():
        with set_aside(target) as old:
            move(target, old)
            move(temporary, target)
        return
    try:
        move(temporary, target)
    except OSError as error:
        if target.exists():
            raise name_taken_error(target) from error
        raise
