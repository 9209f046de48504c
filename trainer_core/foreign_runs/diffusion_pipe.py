"""Two TOML files of diffusion-pipe; what becomes of its keys: `keys/diffusion_pipe.txt`.

Source: tdrussell/diffusion-pipe at 8f83dbf2, ``train.py``, ``utils/dataset.py``,
``models/base.py`` (`extract_clips`) and the models' ``prepare_inputs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .conversion import Conversion, Source
from .dataset_folders import Folder, set_folders
from .key_table_parser import read_tables
from .optimizers import set_optimizer
from .program import ConversionInput, Program, has, set_family, trains_clips
from .shared_settings import NOT_HERE, ONE_SIZE, say_family_of_datasets, set_image_folder, set_sizes
from .value_readers import (
    UnfitError,
    list_of,
    mappings,
    number,
    numbers,
    side_of,
    sides,
    text,
    whole,
    word_of,
)

_NAME = "diffusion-pipe"
_TABLES = read_tables("diffusion_pipe")
_WHOLE_MATRIX = 10_000
"""A rank of a LoKr from which its second factor is surely whole; that program's own example."""
_MODES = {
    "single_beginning": (1, ""),
    "single_middle": (1, "A clip begins at its start here."),
    "multiple_overlapping": (10_000, "Parts do not overlap here."),
}
"""How parts of a clip are taken, to the most of them here and what differs."""


def _directories(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The directories of a file of a dataset; none for any other file."""
    found = values.get("directory")
    found = found if isinstance(found, list) else []
    return found if all(isinstance(e, Mapping) and "path" in e for e in found) else []


def _is_training(values: Mapping[str, Any]) -> bool:
    named = "dataset" in values and has("model", "type")(values) and has("optimizer")(values)
    return named or bool(_directories(values))


def _convert(files: ConversionInput, to: Conversion) -> None:
    datasets = next((e for e in files.documents if _directories(e.values)), None)
    run = next((e for e in files.documents if e is not datasets), None)
    mode = "single_beginning"
    if run is None:
        say_family_of_datasets(files, to, "model.type")
    else:
        source = Source(run.name, run.values, _TABLES[""])
        named = source.read("dataset", text, "")
        datasets = datasets or files.find(named)
        folders = _directories(datasets.values) if datasets else []
        if not folders:
            to.missing("dataset", named, NOT_HERE)
        source.apply(to)
        word = source.read("model.type", text, "")
        edits = any("control_path" in each for each in folders)
        set_family(
            to, files, _NAME, "model.type", word=f"{word} edit" if edits else word, stated=word
        )
        _set_adapter(source, to)
        _set_steps(source, to)
        kind = source.read("optimizer.type", text, "") or "none"
        set_optimizer(source, to, "optimizer.type", "optimizer", word=kind)
        mode = source.read("video_clip_mode", text, mode)
    if datasets is not None and _directories(datasets.values):
        _read_dataset(datasets.name, datasets.values, to, mode if trains_clips(files, to) else "")


def _set_adapter(source: Source, to: Conversion) -> None:
    if not source.has("adapter.rank"):
        raise ConfigError(
            f"{source.file}: there is no [adapter] with a rank, so that the whole model is trained",
            "the rank of the adapter that is trained, such as rank = 32",
            "Give the file of a LoRA training; whole models are not trained here.",
        )
    # Every Linear of a block, those that make the modulation too.
    if "adapter.targets" not in to.values:
        blocks = [r"(.*_)?blocks\..*"]
        to.set("adapter.targets", blocks, "adapter", "every layer of blocks", stated=False)
    rank = source.read("adapter.rank", whole)
    if to.values["adapter.kind"] == "lokr" and rank >= _WHOLE_MATRIX:
        to.set("adapter.full_matrix", True, "adapter.rank", rank)
    else:
        to.set("adapter.rank", rank, "adapter.rank", rank)
        to.set("adapter.alpha", float(rank), "adapter.rank", rank)
    if fused := source.read("adapter.fuse_adapters", mappings, []):
        adapters = [
            {"path": text(each.get("path", "")), "strength": number(each.get("weight", 1.0))}
            for each in fused
        ]
        to.set("base.adapters", adapters, "adapter.fuse_adapters", fused)


def _set_steps(source: Source, to: Conversion) -> None:
    """Set batches, and how often checkpoints are written."""
    key = "micro_batch_size_per_gpu"
    batch = source.values.get(key, 1)
    if isinstance(batch, list):
        to.missing(key, batch, "Sizes of batches by resolution: set dataset.batch_size of folders.")
        batch = 1
    size = source.check(key, batch, whole)
    source.set(to, "training.batch_size", size, key)
    key = "save_every_n_examples"
    if source.has(key) and not source.has("save_every_n_epochs"):
        examples = source.read(key, whole)
        joined = max(1, size * source.read("gradient_accumulation_steps", whole, 1))
        to.set("training.checkpoint_every", max(1, examples // joined), key, examples)


def _read_dataset(name: str, values: Mapping[str, Any], to: Conversion, mode: str) -> None:
    """Turn directories into folders.

    Args:
        mode: How parts of clips are taken; empty where no clips are trained.
    """
    table = _TABLES["directory"]
    shared = {key: value for key, value in values.items() if table.row(key)}
    rest = {key: value for key, value in values.items() if not table.row(key)}
    top = Source(name, rest, _TABLES["dataset"])
    top.apply(to)
    folders: list[Folder] = []
    for place, each in enumerate(top.read("directory", mappings, [])):
        facts = {"@clips": bool(mode)}
        prefix = f"directory[{place}]."
        folders.append(_folder(Source(name, {**shared, **each}, table, prefix, facts=facts), mode))
    set_folders(to, folders)


def _folder(source: Source, mode: str) -> Folder:
    to = Conversion()
    source.apply(to)
    buckets = source.read("size_buckets", list_of(_bucket), [])
    _set_size(source, to, buckets)
    if mode:
        found = [each[-1] for each in buckets] or source.read("frame_buckets", numbers, [1.0])
        lengths = {int(each) for each in found}
        _set_clips(
            source, to, "size_buckets" if buckets else "frame_buckets", lengths=lengths, mode=mode
        )
    set_image_folder(source, to, "path", "control_path")
    return Folder(to, key=source.prefix.rstrip("."))


def _set_clips(source: Source, to: Conversion, key: str, lengths: set[int], mode: str) -> None:
    """Say which parts of clips are trained.

    Args:
        key: What says the lengths, in frames.
    """
    if not (longer := lengths - {1}):
        why = "There only images of it are trained; here clips of it, too."
        to.missing(source.name(key), source.values.get(key, [1]), why)
        return
    near = "A clip has the longest length of the base that it fills; there the longest of these."
    if len(longer) == 1:
        near = "A shorter clip has the longest length that it fills; there it is left out."
    source.set(to, "dataset.frames", max(longer), key, source.values[key], near)
    most, near = source.check("video_clip_mode", mode, word_of(_MODES))
    to.set("dataset.max_clips", most, "video_clip_mode", mode, near)


def _set_size(source: Source, to: Conversion, buckets: list[list[float]]) -> None:
    """Say areas and shapes of the buckets."""
    if buckets:
        source.unused(to, "resolutions", "enable_ar_bucket", why="size_buckets win over it.")
        key, areas = "size_buckets", [side_of(*each[:2]) for each in buckets]
        stated, shapes = key, [each[0] / each[1] for each in buckets]
    else:
        key, (stated, shapes) = "resolutions", _shapes(source)
        areas = source.read(key, list_of(sides), [])
    set_sizes(source, to, key, sizes=areas, near=ONE_SIZE if buckets else "")
    widest = max((max(each, 1 / each) for each in shapes if each > 0), default=1.0)
    near = "" if stated == "enable_ar_bucket" else "Shapes up to it are divided more finely here."
    source.set(to, "dataset.max_aspect_ratio", widest, stated, source.values.get(stated), near)


def _bucket(value: Any) -> list[float]:
    found = numbers(value)
    if len(found) != 3 or min(found) <= 0:
        raise UnfitError("[width, height, frames]")
    return found


def _ratio(value: Any) -> float:
    """Width over height, which may stand as both."""
    found = [*numbers(value), 1.0][:2]
    if min(found) <= 0:
        raise UnfitError("a ratio, or [width, height]")
    return found[0] / found[1]


def _shapes(source: Source) -> tuple[str, list[float]]:
    """The key that says the shapes of buckets, and these as width over height."""
    if not source.on("enable_ar_bucket"):
        return "enable_ar_bucket", [1.0]
    if shapes := source.read("ar_buckets", list_of(_ratio), []):
        return "ar_buckets", shapes
    return "max_ar", [source.read(name, number, 1.0) for name in ("min_ar", "max_ar")]


PROGRAM = Program(
    name=_NAME,
    version="8f83dbf2",
    tables=_TABLES,
    marks={"a model, an optimizer and a dataset, or directories": _is_training},
    convert=_convert,
    beside=_is_training,
)
