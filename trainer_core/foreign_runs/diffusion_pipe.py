"""Trainings of diffusion-pipe: a TOML of the run, and a TOML of its dataset.

Source: tdrussell/diffusion-pipe at 8f83dbf2, ``train.py``, ``utils/dataset.py``,
``models/base.py`` (`extract_clips`) and the models' ``prepare_inputs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .clips import set_buckets, trains_clips
from .folders import Folder, set_folders
from .kohya import say_family_of_datasets
from .optimizers import set_optimizer_by
from .program import Given, Program, has, set_family
from .rules import ABSENT, Conversion, Source, flag, mappings, number, numbers, text, whole, word_of
from .table_text import read_tables
from .vocabulary import (
    ONE_SIZE,
    ending,
    set_base_shift_of_uniform,
    set_image_folder,
    set_reading,
    set_schedule,
    set_sizes,
    side_of,
    sides,
)

_NAME = "diffusion-pipe"
_KEPT = word_of(
    {
        **dict.fromkeys(("float8", "float8_e4m3fn", "float8_e5m2"), "fp8"),
        "nf4": "nf4",
        **dict.fromkeys(("bfloat16", "float16", "float32"), ABSENT),
    }
)
_TABLES = read_tables(
    "diffusion_pipe",
    kept=_KEPT,
    ending=ending,
    checkpointed=lambda value: value == "unsloth" or flag(value),
)
_BASES = (
    *("transformer_path", "diffusion_model", "single_file_path", "checkpoint_path"),
    *("diffusers_path", "ckpt_path"),
)
_SHIFTS = ("model.flux_shift", "model.lumina_shift")
_WHOLE_MATRIX = 10_000
"""A rank of a LoKr from which its second factor is surely whole; that program's own example."""


def _directories(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The directories of a file of a dataset; none for any other file."""
    found = values.get("directory")
    found = found if isinstance(found, list) else []
    return found if all(isinstance(e, Mapping) and "path" in e for e in found) else []


def _is_training(values: Mapping[str, Any]) -> bool:
    named = "dataset" in values and has("model", "type")(values) and has("optimizer")(values)
    return named or bool(_directories(values))


def _convert(files: Given, to: Conversion) -> None:
    datasets = next((e for e in files.documents if _directories(e.values)), None)
    run = next((e for e in files.documents if e is not datasets), None)
    mode = "single_beginning"
    if run is None:
        say_family_of_datasets(files, to, "model.type")
    else:
        source = Source(run.name, run.values, _TABLES["arguments"])
        named = source.read("dataset", text, "")
        datasets = datasets or (files.find(named) if named else None)
        folders = _directories(datasets.values) if datasets else []
        if not folders:
            why = "It is not here: give it behind the other file, with a second --from."
            to.lack("dataset", named, why)
        source.apply(to)
        _set_base(files, source, to, edits=any("control_path" in each for each in folders))
        _set_adapter(source, to)
        _set_noise(source, to)
        _set_steps(source, to)
        _set_rest(source, to)
        mode = source.read("video_clip_mode", text, mode)
    if datasets is not None and _directories(datasets.values):
        _read_dataset(datasets.name, datasets.values, to, mode if trains_clips(files, to) else "")


def _set_base(files: Given, source: Source, to: Conversion, *, edits: bool) -> None:
    word = source.read("model.type", text, "")
    set_family(to, files, _NAME, "model.type", f"{word} edit" if edits else word, word)
    first, *others = [f"model.{each}" for each in _BASES if source.has(f"model.{each}")] or [""]
    if first:
        source.say(to, "base.path", source.read(first, text), first)
    source.off(to, *others, why="The denoiser is read from the file that is named for it.")
    # Every Linear of a block, those that make the modulation too.
    if "adapter.targets" not in to.values:
        blocks = [r"(.*_)?blocks\..*"]
        to.say("adapter.targets", blocks, "adapter", "every layer of blocks", stated=False)


def _set_adapter(source: Source, to: Conversion) -> None:
    if not source.has("adapter.rank"):
        raise ConfigError(
            f"{source.file}: there is no [adapter] with a rank, so that the whole model is trained",
            "the rank of the adapter that is trained, such as rank = 32",
            "Give the file of a LoRA training; whole models are not trained here.",
        )
    kind = source.read("adapter.type", word_of({"lora": "lora", "lokr": "lokr"}), "lora")
    source.say(to, "adapter.kind", kind, "adapter.type")
    to.say("adapter.init", "lycoris", "adapter.type", "kaiming", stated=False)
    rank = source.read("adapter.rank", whole)
    if kind == "lokr" and rank >= _WHOLE_MATRIX:
        to.say("adapter.full_matrix", True, "adapter.rank", rank)
    else:
        to.say("adapter.rank", rank, "adapter.rank", rank)
        to.say("adapter.alpha", float(rank), "adapter.rank", rank)
    if kind == "lokr" and not source.has("adapter.decompose_factor"):
        to.say("adapter.factor", -1, "adapter.decompose_factor", -1, stated=False)
    fused = source.read("adapter.fuse_adapters", mappings, [])
    if fused:
        listed = [
            {"path": text(each.get("path", "")), "strength": number(each.get("weight", 1.0))}
            for each in fused
        ]
        to.say("base.adapters", listed, "adapter.fuse_adapters", fused)


def _set_noise(source: Source, to: Conversion) -> None:
    """Levels are drawn from a normal logit or evenly, and then moved."""
    key, density = "model.timestep_sample_method", "training.sigma.density"
    kind = source.read(key, word_of({e: e for e in ("logit_normal", "uniform")}), "logit_normal")
    shift = source.read("model.shift", number, 0.0)
    moved = (each for each in _SHIFTS if not shift and source.read(each, flag, False))
    of_base = next(moved, "")
    if kind == "uniform" and of_base:
        set_base_shift_of_uniform(to, (of_base, True))
    elif kind == "uniform":
        source.say(to, density, kind, key)
    else:
        source.say(to, density, "shifted" if shift or of_base else kind, key, kind)
        source.take(to, "model.sigmoid_scale", "training.sigma.std", number)
    if of_base:
        to.tell(density, of_base, True, "Moved as the base's own scheduler says.")
    if shift:
        source.say(to, "training.sigma.shift", shift, "model.shift")
    for each in ("model.sigmoid_scale", "model.shift", *_SHIFTS):
        source.unused(to, each, why="It moves nothing here.")


def _set_steps(source: Source, to: Conversion) -> None:
    """Set length, batches, and how often checkpoints are written."""
    if source.has("max_steps"):
        source.off(to, "epochs", why="max_steps ends the run.")
    elif source.has("epochs"):
        to.epochs["training.steps"] = "epochs", source.read("epochs", whole)
    key, batch = "micro_batch_size_per_gpu", source.values.get("micro_batch_size_per_gpu", 1)
    if isinstance(batch, list):
        to.lack(key, batch, "Sizes of batches by resolution: set dataset.batch_size of folders.")
        batch = 1
    size = source.check(key, batch, whole)
    source.say(to, "training.batch_size", size, key)
    every, setting = source.read("save_every_n_steps", whole, 0), "training.checkpoint_every"
    if source.has("save_every_n_epochs"):
        epochs = source.read("save_every_n_epochs", whole)
        to.epochs[setting] = "save_every_n_epochs", epochs
    elif source.has("save_every_n_examples"):
        examples = source.read("save_every_n_examples", whole)
        joined = size * source.read("gradient_accumulation_steps", whole, 1)
        to.say(setting, max(1, examples // max(1, joined)), "save_every_n_examples", examples)
    elif every:
        to.say(setting, every, "save_every_n_steps", every)
    to.say("training.keep_checkpoints", 10_000, "save_every_n_epochs", "all", stated=False)


def _set_rest(source: Source, to: Conversion) -> None:
    """Set optimizer, schedule, loss, memory and logs."""
    args = {
        name: source.values[f"optimizer.{name}"]
        for name in ("betas", "weight_decay", "eps", "momentum")
        if source.has(f"optimizer.{name}")
    }
    kind = source.read("optimizer.type", text)
    set_optimizer_by(source, to, ("optimizer.type", kind), args, "optimizer.{}")
    name = source.read("lr_scheduler", text, "constant")
    set_schedule(to, ("lr_scheduler", name), named=source.has("lr_scheduler"))
    if source.has("huber_delta"):
        delta = source.read("huber_delta", number)
        to.say("training.loss.kind", "huber", "huber_delta", delta)
        to.say("training.loss.huber_delta", delta, "huber_delta", delta)
    if source.values.get("activation_checkpointing") == "unsloth":
        to.say("memory.checkpoint_inputs", "ram", "activation_checkpointing", "unsloth")


def _read_dataset(name: str, values: Mapping[str, Any], to: Conversion, mode: str) -> None:
    """Turn directories into folders.

    Args:
        mode: How parts of clips are taken; empty where no clips are trained.
    """
    table = _TABLES["directory"]
    shared = {key: value for key, value in values.items() if key in table}
    rest = {key: value for key, value in values.items() if key not in table}
    top = Source(name, rest, _TABLES["dataset"])
    top.apply(to)
    folders: list[Folder] = []
    for place, each in enumerate(top.read("directory", mappings, [])):
        source = Source(name, {**shared, **each}, table, f"directory[{place}].")
        folders.append(_folder(source, mode))
    set_folders(to, folders)


def _folder(source: Source, mode: str) -> Folder:
    to, key = Conversion(), source.prefix
    source.apply(to)
    buckets = source.read("size_buckets", lambda value: [numbers(each) for each in value], [])
    _set_size(source, to, buckets)
    if mode:
        frames = {int(each[-1]) for each in buckets} or {
            int(each) for each in source.read("frame_buckets", numbers, [1.0])
        }
        set_buckets(source, to, "size_buckets" if buckets else "frame_buckets", frames, mode)
    else:
        source.off(to, "frame_buckets", why="Clips are trained in ComfyUI alone.")
    to.say("dataset.upscale", True, f"{key}path", "sizes of buckets", stated=False)
    name = "cache_shuffle_num" if source.read("cache_shuffle_num", whole, 0) else "shuffle_tags"
    if orders := int(number(source.values.get(name, 0))):
        to.say("dataset.captions.shuffle", orders, key + name, source.values[name])
    path, control = (source.read(name, text, "") for name in ("path", "control_path"))
    controls = [(f"{key}control_path", control)] if control else []
    set_image_folder(to, (f"{key}path", path), controls)
    skips = source.read("skip_empty_caption", flag, True)
    missing = "skip" if skips else "empty"
    if source.has("skip_empty_caption"):
        source.say(to, "dataset.missing_caption", missing, "skip_empty_caption", skips)
    set_reading(to, f"{key}path", missing_caption=missing, masks=source.has("mask_path"))
    return Folder(to, key=key.rstrip("."))


def _set_size(source: Source, to: Conversion, buckets: list[list[float]]) -> None:
    """Say areas and shapes of the buckets."""
    key = source.prefix
    if buckets:
        areas, near = {side_of(*each[:2]) for each in buckets}, ONE_SIZE
        source.off(to, "resolutions", "enable_ar_bucket", why="size_buckets win over it.")
        sized, stated, shapes = "size_buckets", "size_buckets", [e[0] / e[1] for e in buckets]
    else:
        areas = set(source.read("resolutions", lambda value: [sides(each) for each in value], []))
        sized, near, (stated, shapes) = "resolutions", "", _shapes(source)
    largest_first = sorted(areas, reverse=True)
    set_sizes(to, largest_first, key + sized, source.values.get(sized), near)
    widest = max((max(each, 1 / each) for each in shapes if each > 0), default=1.0)
    near = "" if stated == "enable_ar_bucket" else "Shapes up to it are divided more finely here."
    source.say(to, "dataset.max_aspect_ratio", widest, stated, source.values.get(stated), near)


def _shapes(source: Source) -> tuple[str, list[float]]:
    """The key that says the shapes of buckets, and these as width over height."""
    if not source.read("enable_ar_bucket", flag, False):
        return "enable_ar_bucket", [1.0]
    listed = source.values.get("ar_buckets") or []
    if listed:
        pairs = [numbers(e) if isinstance(e, list) else [number(e), 1.0] for e in listed]
        return "ar_buckets", [first / second for first, second in pairs]
    ends = [source.read(name, number, 1.0) for name in ("min_ar", "max_ar")]
    return "max_ar", ends


PROGRAM = Program(
    name=_NAME,
    version="8f83dbf2",
    tables=_TABLES,
    marks={"a model, an optimizer and a dataset, or directories": _is_training},
    convert=_convert,
    beside=_is_training,
)
