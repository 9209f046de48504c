"""Configurations of OneTrainer, JSON; what becomes of its keys: `keys/one_trainer.txt`.

Source: Nerogar/OneTrainer at 23df3832, ``modules/util/config/``, ``modules/util/enum/``,
``modules/util/create.py``, ``modules/util/optimizer_util.py``,
``modules/modelSetup/mixin/ModelSetupNoiseMixin.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ..config.patterns import pattern_mistake
from ..errors import InputError
from .conversion import Conversion, Source, name_of
from .dataset_folders import WEIGHT, Folder, set_folders
from .key_table_parser import read_tables
from .optimizers import set_optimizer
from .program import ConversionInput, Program, has, set_family
from .shared_settings import NOT_HERE, ONE_SIZE, set_previews, set_sizes, set_text_encoder
from .value_readers import UnfitError, containing, flag, mappings, number, sides, text, whole

_NAME = "OneTrainer"
_TABLES = read_tables("one_trainer")
_USUAL = {"LION_8BIT": {"beta2": 0.999}, "CAME": {"weight_decay": 0.01}}
"""Numbers of optimizers that are others than their libraries'."""
_OF_SAMPLES = ("width", "height", "seed", "negative_prompt", "diffusion_steps", "cfg_scale")
_ROLES = {"STANDARD": "train", "VALIDATION": "validation", "PRIOR_PREDICTION": "regularization"}


def _convert(files: ConversionInput, to: Conversion) -> None:
    documents = [each for each in files.documents if not _holds_list(each.values)]
    source = Source(files.name, (documents or files.documents)[0].values, _TABLES[""])
    source.apply(to)
    method = source.read("training_method", text, "FINE_TUNE")
    if method != "LORA":
        raise InputError(
            f"{files.name}: training_method is {name_of(method)}",
            "LORA: a training of an adapter",
            "Choose LoRA there; whole models and embeddings are not trained here.",
        )
    to.unused("training_method", method, "An adapter is always what is trained.")
    _set_targets(source, to)
    set_family(to, files, _NAME, "model_type", word=source.read("model_type", text, ""))
    _set_rates(source, to)
    set_text_encoder(to, source, "text_encoder.train", "text_encoder.learning_rate")
    _set_loss(source, to)
    _set_output(source, to)
    _set_concepts(files, source, to)
    _set_samples(files, source, to)
    _set_interval(source, to, "sample_after", usual=10, setting="preview.every")


def _holds_list(values: Mapping[str, Any]) -> bool:
    """Concepts or samples are in a file of their own."""
    return set(values) == {"list"}


_WITH_WITHOUT = re.compile(r"\^?\(\?=\.\*(\w+)\)\(\?!\.\*(\w+)\)\.\*\$?")
"""Names with one word in them and without another, as that program's own presets write it."""


def _set_targets(source: Source, to: Conversion) -> None:
    key, targets = "layer_filter", "adapter.targets"
    stated = source.read(key, text, "")
    parts = [part.strip() for part in stated.split(",") if part.strip()]
    pairs = [found.groups() for part in parts if (found := _WITH_WITHOUT.fullmatch(part))]
    if not parts:
        near = "Every linear layer; there also what lies outside the preset."
        source.set(to, targets, "all_linear", key, "", near)
    elif not source.on("layer_filter_regex"):
        to.set(targets, containing(parts), key, stated)
    elif len(pairs) == len(parts) and len({without for _, without in pairs}) == 1:
        to.set(targets, containing([name for name, _ in pairs]), key, stated)
        to.set("adapter.exclude", containing([pairs[0][1]]), key, stated)
    else:
        fit = [part for part in parts if not pattern_mistake(f".*({part}).*")]
        wrong = name_of(", ".join(part for part in parts if part not in fit))
        why = f"Without {wrong}: it is not an expression that is read here." if wrong else ""
        if fit:
            to.set(targets, [f".*({part}).*" for part in fit], key, stated, why)
        else:
            to.missing(key, stated, "It is not an expression that is read here.")


def _set_rates(source: Source, to: Conversion) -> None:
    """Set optimizer and warm-up."""
    # Older files have an optimizer's name alone.
    key = "optimizer" if source.has("optimizer") else "optimizer.optimizer"
    name = source.read(key, text, "") or "ADAMW"
    paged = "Paged" if source.on("optimizer.is_paged") and name.endswith("_8BIT") else ""
    set_optimizer(source, to, key, "optimizer", word=paged + name, defaults=_USUAL.get(name))
    key = "learning_rate_warmup_steps"
    warmup = source.read(key, number, 200.0)
    accumulated = max(source.read("gradient_accumulation_steps", whole, 1), 1)
    name, value = ("share", warmup) if 0 < warmup <= 1 else ("steps", int(warmup / accumulated))
    source.set(to, f"training.schedule.warmup_{name}", value, key, warmup)


_LOSSES = {"mse_strength": "mse", "mae_strength": "mae", "huber_strength": "huber"}
_LOSSES |= {"log_cosh_strength": ""}


def _set_loss(source: Source, to: Conversion) -> None:
    """Set the loss that counts most, and the average of the weights."""
    parts = {key: source.read(key, number, float(key == "mse_strength")) for key in _LOSSES}
    used = {key: value for key, value in parts.items() if value}
    first = max(used, key=lambda key: used[key], default="mse_strength")
    kind = _LOSSES[first]
    near = "There half of it, and with a kink at huber_delta." if kind == "huber" else ""
    if not kind or len(used) != 1:
        near = "Losses are not added up here; this one counts most there."
    elif used[first] != 1:
        near = "Its strength scales the learning rate there."
    source.set(to, "training.loss.kind", kind or "mse", first, parts[first], near)
    for key, value in parts.items():
        if key != first and source.has(key):
            (to.missing if value else to.unused)(key, value, "Only one loss is taken.")
    if kind == "huber":
        delta = source.read("huber_delta", number, 1.0)
        source.set(to, "training.loss.huber_delta", delta, "huber_delta")
    else:
        source.unused(to, "huber_delta")
    if source.word("ema") != "OFF":
        decay = source.read("ema_decay", number, 0.999)
        every = max(1, source.read("ema_update_step_interval", whole, 5))
        near = f"There it is updated every {every} steps: this decay forgets as fast."
        ours = round(decay ** (1 / every), 6) if decay > 0 else decay
        to.set("training.ema.decay", ours, "ema_decay", decay, near)


def _set_output(source: Source, to: Conversion) -> None:
    """Set name, size of images, and how often something is written."""
    key = "output_model_destination"
    if place := source.read(key, text, ""):
        path = PurePath(place.replace("\\", "/"))
        to.set("output.name", path.stem, key, place)
        near = "Each run has a folder of its own there."
        to.set("output.dir", str(path.parent), key, place, near)
    _set_interval(source, to, "backup_after", usual=30, setting="training.checkpoint_every")
    _set_interval(source, to, "save_every", usual=0, setting="training.keep_every")
    _save_what_is_kept(to)
    sizes = source.read("resolution", _sizes_of, [512])
    set_sizes(source, to, "resolution", sizes=sizes, near=ONE_SIZE)


def _sizes_of(value: Any) -> list[int]:
    """A reader of sizes parted by commas, of which ``512x768`` is one: the largest first."""
    parts = [part.strip().split("x") for part in text(value).split(",") if part.strip()]
    if not parts:
        raise UnfitError("a resolution such as 1024 or 512x768")
    return sorted({sides([whole(side) for side in part]) for part in parts}, reverse=True)


def _set_interval(source: Source, to: Conversion, key: str, usual: int, setting: str) -> None:
    by = f"{key}_unit"
    unit = source.read(by, text, "MINUTE" if usual else "NEVER")
    value = source.read(key, number, float(usual))
    minutes = {"MINUTE": 1.0, "HOUR": 60.0, "SECOND": 1 / 60}
    stated = source.has(key) or source.has(by)
    if unit in {"STEP", "ALWAYS"}:
        to.set(setting, int(value) if unit == "STEP" else 1, key, value)
    elif unit in minutes and setting == "training.checkpoint_every":
        to.set("training.checkpoint_minutes", value * minutes[unit], key, value, stated=stated)
        to.set(setting, 0, by, unit, stated=stated)
    elif unit == "NEVER":
        to.set(setting, 0, by, unit, stated=stated)
    elif unit == "EPOCH":
        to.epochs[setting] = key, value
    elif stated or "preview.prompts" in to.values:
        to.missing(key, f"{value:g} {unit}", f"Set {setting} to a number of steps.")
    if not any(note.key == by for note in to.notes):
        source.unused(to, by, why=f"It is read with {key}.")


def _save_what_is_kept(to: Conversion) -> None:
    """Save a checkpoint wherever one is kept for good, where backups are counted in minutes."""
    every, kept = "training.checkpoint_every", "training.keep_every"
    if every in to.epochs or to.values.get(every):
        return
    if kept in to.epochs:
        to.values.pop(every, None)
        to.epochs = {every: to.epochs[kept], **to.epochs}
    elif steps := to.values.get(kept):
        to.set(every, steps, "save_every", steps)


def _listed(files: ConversionInput, source: Source, key: str, file: str, marks: set[str]) -> Any:
    """A list that stands in the configuration, in a file of its own, or was given beside it.

    Returns:
        The list, or nothing; and a note is there on the file that is named.
    """
    named = source.read(file, text, "")
    lists = [(each.name, each.values) for each in files.documents]
    lists = [(name, each["list"]) for name, each in lists if _holds_list(each)]
    found = files.find(named) if named and not source.has(key) else None
    if found is not None and _holds_list(found.values):
        lists.append((named, found.values["list"]))
    if source.has(key):
        lists = [(key, source.values[key])]
    for name, items in lists:
        first = items[0] if isinstance(items, list) and items else None
        if name in (key, named) or (isinstance(first, Mapping) and not marks.isdisjoint(first)):
            return source.check(name, items, mappings)
    return None


def _set_concepts(files: ConversionInput, source: Source, to: Conversion) -> None:
    key = "concept_file_name"
    items = _listed(files, source, "concepts", file=key, marks={"path", "balancing"})
    if items is None:
        to.missing(key, source.values.get(key) or "training_concepts/concepts.json", NOT_HERE)
        return
    source.unused(to, key, why="Its concepts are read.")
    if not items:
        to.missing("concepts", items, "It names no folder.")
    folders: list[Folder] = []
    for place, values in enumerate(items):
        one = Source(files.name, values, _TABLES["concepts"], f"concepts[{place}].")
        if one.read("enabled", flag, True):
            prompts = files.lines(one.read("text.prompt_path", text, ""))
            folders.append(_folder(one, prompts or [], masks=source.on("masked_training")))
        else:
            to.unused(f"concepts[{place}]", values.get("path", ""), "It is switched off there.")
    set_folders(to, folders)


def _folder(source: Source, prompts: Sequence[str], *, masks: bool) -> Folder:
    """One concept as a folder."""
    to = Conversion()
    source.facts = {"@prompts": bool(prompts), "@masks": masks}
    source.apply(to)
    path = source.read("path", text, "")
    if path:
        source.set(to, "dataset.path", path, "path")
    _set_repeats(source, to)
    kind, key = source.word("text.prompt_source"), "text.prompt_path"
    if kind == "concept" and prompts:
        stated = source.values[key]
        source.set(to, "dataset.captions.default", "\n".join(prompts), key, stated)
    elif kind == "concept":
        why = "It cannot be read; set dataset.captions.default."
        to.missing(source.name(key), source.values.get(key), why)
    if source.on("image.enable_resolution_override"):
        key = "image.resolution_override"
        found = source.read(key, _sizes_of, [512])
        near = "One size of several." if found[1:] else ""
        stated = source.values.get(key, "512")
        to.set("dataset.resolution", found[0], source.name(key), stated, near)
    role = _ROLES.get(source.read("type", text, "STANDARD"), "train")
    weight = source.read("loss_weight", number, 1.0)
    if weight != 1:
        to.applied(WEIGHT, source.name("loss_weight"), weight)
    return Folder(to, role, weight, source.prefix.rstrip("."))


def _set_repeats(source: Source, to: Conversion) -> None:
    value = source.read("balancing", number, 1.0)
    if source.read("balancing_strategy", text, "REPEATS") == "SAMPLES":
        to.missing(
            source.name("balancing"), value, "An epoch takes all images; set dataset.num_repeats."
        )
    elif value < 1:
        why = "An epoch takes all images; give the others more repeats."
        to.missing(source.name("balancing"), value, why)
    else:
        near = "" if value == int(value) else "Rounded to whole repeats."
        source.set(to, "dataset.num_repeats", round(value), "balancing", value, near)


def _set_samples(files: ConversionInput, source: Source, to: Conversion) -> None:
    key = "sample_definition_file_name"
    items = _listed(files, source, "samples", file=key, marks={"prompt", "diffusion_steps"})
    if items is None:
        if source.values.get(key):
            to.missing(key, source.values[key], NOT_HERE)
        return
    source.unused(to, key, why="Its samples are read.")
    kept: list[Mapping[str, Any]] = []
    for place, each in enumerate(items):
        one = Source(files.name, each, _TABLES["samples"], f"samples[{place}].")
        if one.read("enabled", flag, True):
            one.apply(to)
            kept.append({k: v for k, v in each.items() if k in ("prompt", *_OF_SAMPLES)})
    if kept:
        set_previews(source, to, kept, place="samples", names=_OF_SAMPLES)


PROGRAM = Program(
    name=_NAME,
    version="23df3832",
    tables=_TABLES,
    marks={
        "training_method": has("training_method"),
        "model_type": has("model_type"),
        "base_model_name": has("base_model_name"),
    },
    convert=_convert,
    beside=_holds_list,
)
