"""Configurations of OneTrainer: JSON, with concepts and samples inside or in files of their own.

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
from .documents import Document
from .folders import set_folders
from .one_trainer_concepts import concept_folder, set_samples, sizes_of
from .one_trainer_noise import set_loss, set_noise, set_shift
from .optimizers import NUMBERS, set_optimizer_by
from .program import Given, Program, has, set_family
from .rules import Conversion, Source, flag, mapping, mappings, name_of, number, text, whole
from .table_text import read_tables
from .vocabulary import (
    ONE_SIZE,
    containing,
    set_masks,
    set_schedule,
    set_sizes,
    set_text_encoder,
)

_NAME = "OneTrainer"
_TABLES = read_tables("one_trainer")


def _convert(files: Given, to: Conversion) -> None:
    main = next((each for each in files.documents if not _is_list(each)), files.documents[0])
    source = Source(files.name, main.values, _TABLES[""])
    source.apply(to)
    method = source.read("training_method", text, "FINE_TUNE")
    if method != "LORA":
        raise InputError(
            f"{files.name}: training_method is {name_of(method)}",
            "LORA: a training of an adapter",
            "Choose LoRA there; whole models and embeddings are not trained here.",
        )
    to.off("training_method", method, "An adapter is always what is trained.")
    _adapter(source, to)
    set_family(to, files, _NAME, "model_type", source.read("model_type", text, ""))
    _optimizer(source, to)
    _schedule(source, to)
    set_text_encoder(to, source, "text_encoder.train", "text_encoder.learning_rate")
    set_noise(source, to)
    set_shift(source, to)
    set_loss(source, to)
    _memory(source, to)
    _run(source, to)
    _sizes(source, to)
    _concepts(files, source, to)
    _samples(files, source, to)
    set_masks(source, to, "masked_training", _TABLES[" if masked"])


def _is_list(document: Document) -> bool:
    return _holds_list(document.values)


def _holds_list(values: Mapping[str, Any]) -> bool:
    """Concepts or samples are in a file of their own."""
    return set(values) == {"list"}


_KINDS = {"LORA": "lora", "LOHA": "loha", "LOKR": "lokr", "OFT_2": "oft"}


def _adapter(source: Source, to: Conversion) -> None:
    its_kind = source.read("peft_type", text, "LORA")
    kind = _KINDS.get(its_kind)
    if kind is None:
        to.lack("peft_type", its_kind, "There is no such kind here; lora stands in its place.")
        kind = "lora"
    source.say(to, "adapter.kind", kind, "peft_type", its_kind)
    rank = {"oft": ("oft_block_size", 32), "lokr": ("lokr_dim", 16)}.get(kind, ("lora_rank", 16))
    value = source.read(rank[0], whole, rank[1])
    source.say(to, "adapter.rank", value, rank[0])
    if kind != "oft":
        source.say(to, "adapter.alpha", source.read("lora_alpha", number, 1.0), "lora_alpha")
    used = {rank[0], "peft_type", "lora_alpha"}
    if kind == "lokr":
        source.when(True, to, _TABLES[" if lokr"])
        used |= {*_TABLES[" if lokr"], "lokr_weight_decompose"}
    prefix = {"lora": "lora_decompose", "lokr": "lokr_weight_decompose"}.get(kind)
    if prefix and source.read(prefix, flag, False):
        to.say("adapter.dora", True, prefix, True)
        axis = "lora_decompose_output_axis" if kind == "lora" else "lokr_dora_on_output"
        output = source.read(axis, flag, kind == "lokr")
        source.say(to, "adapter.dora_axis", "output" if output else "input", axis, output)
        used.add(axis)
    for key in source.values:
        if key.startswith(("lora_rank", "lora_decompose", "oft_", "lokr_")) and key not in used:
            _leftover(source, key, to)
    _targets(source, to)


def _leftover(source: Source, key: str, to: Conversion) -> None:
    if key == "oft_scaled" and source.values[key]:
        to.lack(key, True, "There is no scale of a rotation here.")
    else:
        to.off(key, source.values[key], "It means nothing with this kind, or is off.")


def _targets(source: Source, to: Conversion) -> None:
    filter_text = source.read("layer_filter", text, "")
    parts = [part.strip() for part in filter_text.split(",") if part.strip()]
    if not parts:
        near = "Every linear layer; there also what lies outside the preset."
        source.say(to, "adapter.targets", "all_linear", "layer_filter", "", near)
    elif source.read("layer_filter_regex", flag, False):
        _by_expressions(filter_text, parts, to)
    else:
        to.say("adapter.targets", containing(parts), "layer_filter", filter_text)
    for key in ("layer_filter_preset", "layer_filter_regex"):
        if key in source.values:
            to.off(key, source.values[key], "layer_filter says which layers.")


_WITH_WITHOUT = re.compile(r"\^?\(\?=\.\*(\w+)\)\(\?!\.\*(\w+)\)\.\*\$?")
"""Names with one word in them and without another, as that program's own presets write it."""


def _by_expressions(patterns: str, parts: Sequence[str], to: Conversion) -> None:
    pairs = [found.groups() for part in parts if (found := _WITH_WITHOUT.fullmatch(part))]
    if len(pairs) == len(parts) and len({without for _, without in pairs}) == 1:
        to.say("adapter.targets", containing([name for name, _ in pairs]), "layer_filter", patterns)
        to.say("adapter.exclude", containing([pairs[0][1]]), "layer_filter", patterns)
        return
    fit = [part for part in parts if not pattern_mistake(f".*({part}).*")]
    for part in parts:
        if part not in fit:
            to.lack("layer_filter", part, "It is no expression that is read here.")
    if fit:
        to.say("adapter.targets", [f".*({part}).*" for part in fit], "layer_filter", patterns)


_USUAL = {
    "AdEMAMix": {},
    "LION_8BIT": {"beta2": 0.999},
    "CAME": {"weight_decay": 0.01},
}


def _numbers_of(value: Any) -> Mapping[str, Any]:
    """An optimizer's section; older files have its name alone."""
    return {"optimizer": value} if isinstance(value, str) else mapping(value)


def _optimizer(source: Source, to: Conversion) -> None:
    numbers = source.read("optimizer", _numbers_of, {})
    name = source.check("optimizer.optimizer", numbers.get("optimizer") or "ADAMW", text)
    paged = "Paged" if numbers.get("is_paged") and name.endswith("_8BIT") else ""
    args: dict[str, Any] = {}
    for key, value in numbers.items():
        if key in NUMBERS and value is not None:
            args[key] = value
        elif key not in ("optimizer", "is_paged", "__version", *NUMBERS):
            off = value in (None, False, "", [], {}) or (value is True and key in _ON)
            args |= {} if off else {key: value}
            if off:
                to.off(f"optimizer.{key}", value)
    set_optimizer_by(
        source,
        to,
        ("optimizer.optimizer", paged + name),
        args,
        "optimizer.{}",
        _USUAL.get(name),
        named="optimizer" in numbers,
    )


_ON = {
    "stochastic_rounding",
    "weight_decay_by_lr",
    "split_groups",
    "split_groups_mean",
    "factored",
    "factored_fp32",
    "use_stableadamw",
    "d_limiter",
    "use_schedulefree",
    "rms_rescaling",
    "fused",
    "foreach",
    "use_bias_correction",
}


_WAVES = "There the rate rises again as it has fallen; here it falls from its highest each time."


def _schedule(source: Source, to: Conversion) -> None:
    rate = source.read("learning_rate", number, 3e-6)
    own = source.read("transformer.learning_rate", number)
    key = "learning_rate" if own is None else "transformer.learning_rate"
    source.say(to, "training.optimizer.learning_rate", rate if own is None else own, key)
    if own is not None:
        source.off(to, "learning_rate", why="transformer.learning_rate wins over it.")
    scaler = source.read("learning_rate_scaler", text, "NONE")
    if scaler != "NONE":
        to.lack("learning_rate_scaler", scaler, "Multiply training.optimizer.learning_rate.")
    name = source.read("learning_rate_scheduler", text, "CONSTANT")
    set_schedule(
        to,
        ("learning_rate_scheduler", name),
        cycles=("learning_rate_cycles", source.read("learning_rate_cycles", number, 1.0)),
        min_ratio=(
            "learning_rate_min_factor",
            source.read("learning_rate_min_factor", number, 0.0),
        ),
        near=_WAVES if name == "COSINE_WITH_RESTARTS" else "",
        named=source.has("learning_rate_scheduler"),
    )
    numbers = ("learning_rate_cycles", "learning_rate_min_factor")
    source.unused(to, *numbers, why="It means nothing with this schedule.")
    warmup = source.read("learning_rate_warmup_steps", number, 200.0)
    accumulated = source.read("gradient_accumulation_steps", whole, 1)
    key, section = "learning_rate_warmup_steps", "training.schedule"
    if 0 < warmup <= 1:
        source.say(to, f"{section}.warmup_share", warmup, key)
    else:
        source.say(to, f"{section}.warmup_steps", int(warmup / max(accumulated, 1)), key, warmup)


_FORMATS = {
    "FLOAT_8": "fp8",
    "INT_8": "int8",
    "NFLOAT_4": "nf4",
    "GGUF": "file",
    "GGUF_A8_FLOAT": "file",
    "GGUF_A8_INT": "file",
}
_COMPUTED = {
    "FLOAT_W8A8": "fp8",
    "INT_W8A8": "int8",
    "FLOAT_W8A8_COMPRESSED": "fp8",
    "INT_W8A8_COMPRESSED": "int8",
}


def _memory(source: Source, to: Conversion) -> None:
    key = "transformer.weight_dtype"
    kind = source.read(key, text, "")
    if kind in _FORMATS:
        to.say("memory.base_format", _FORMATS[kind], key, kind)
    elif kind in _COMPUTED:
        to.say("memory.base_format", _COMPUTED[kind], key, kind)
        to.say("memory.compute", "8bit", key, kind, "Inputs are rounded in another way.")
    elif kind:
        to.off(key, kind, "memory.plan chooses.")
    key = "transformer.gradient_checkpointing"
    old = source.values.get("gradient_checkpointing")
    if source.has(key):
        to.say("memory.gradient_checkpointing", source.read(key, flag), key, source.values[key])
    elif old is not None:
        on = old not in ("OFF", False)
        to.say("memory.gradient_checkpointing", on, "gradient_checkpointing", old)


def _run(source: Source, to: Conversion) -> None:
    """Name, checkpoints, previews, logs."""
    to.epochs["training.steps"] = "epochs", source.read("epochs", number, 100)
    place = source.read("output_model_destination", text, "")
    if place:
        path = PurePath(place.replace("\\", "/"))
        to.say("output.name", path.stem, "output_model_destination", place)
        near = "Each run has a folder of its own there."
        to.say("output.dir", str(path.parent), "output_model_destination", place, near)
    _interval(source, to, "backup_after", 30, "training.checkpoint_every")
    _interval(source, to, "save_every", 0, "training.keep_every")
    count = source.read("rolling_backup_count", whole, 3)
    if source.read("rolling_backup", flag, False):
        source.say(to, "training.keep_checkpoints", count, "rolling_backup_count")
    else:
        to.say("training.keep_checkpoints", 10_000, "rolling_backup", False, stated=False)
    source.unused(to, "rolling_backup", "rolling_backup_count")
    if not source.read("tensorboard", flag, True):
        to.say("metrics.trackers", [], "tensorboard", False)
    elif "tensorboard" in source.values:
        to.off("tensorboard", True, "It is always written.")


def _interval(source: Source, to: Conversion, key: str, usual: int, setting: str) -> None:
    unit = source.read(f"{key}_unit", text, "MINUTE" if usual else "NEVER")
    value = source.read(key, number, float(usual))
    minutes = {"MINUTE": 1.0, "HOUR": 60.0, "SECOND": 1 / 60}
    is_set = source.has(key) or source.has(f"{key}_unit")
    if unit == "STEP":
        to.say(setting, int(value), key, value)
    elif unit in minutes and setting == "training.checkpoint_every":
        to.say("training.checkpoint_minutes", value * minutes[unit], key, value, stated=is_set)
        to.say(setting, 0, f"{key}_unit", unit, stated=is_set)
    elif unit == "NEVER":
        to.say(setting, 0, f"{key}_unit", unit, stated=is_set)
    elif unit == "EPOCH":
        to.epochs[setting] = key, value
    else:
        to.lack(key, f"{value:g} {unit}", f"Set {setting} to a number of steps.")
    source.unused(to, f"{key}_unit", why=f"It is read with {key}.")


def _sizes(source: Source, to: Conversion) -> None:
    """Several sizes, parted by commas, are each of their own; ``512x768`` is one."""
    if source.has("resolution"):
        sizes = source.read("resolution", sizes_of)
        set_sizes(to, sizes, "resolution", source.read("resolution", text), ONE_SIZE)
    else:
        source.say(to, "dataset.resolution", 512, "resolution", "512")


def _named(item: Any, marks: set[str]) -> bool:
    return isinstance(item, Mapping) and not marks.isdisjoint(item)


def _listed(files: Given, source: Source, key: str, file: str, marks: set[str]) -> Any:
    """A list that stands in the configuration, in a file of its own, or was given beside it."""
    if source.has(key):
        return source.read(key, mappings), key
    for each in files.documents:
        items = each.values.get("list") if _is_list(each) else None
        if isinstance(items, list) and items and _named(items[0], marks):
            return source.check(each.name, items, mappings), each.name
    named = source.read(file, text, "")
    found = files.find(named) if named else None
    if found is not None and _is_list(found):
        return source.check(named, found.values["list"], mappings), named
    return None, named


def _concepts(files: Given, source: Source, to: Conversion) -> None:
    items, named = _listed(files, source, "concepts", "concept_file_name", {"path", "balancing"})
    if items is None:
        why = "It is not here: give it behind the other file, with a second --from."
        to.lack("concept_file_name", named or "training_concepts/concepts.json", why)
        return
    if source.has("concept_file_name"):
        to.off("concept_file_name", source.values["concept_file_name"], "Its concepts are read.")
    folders = []
    for place, values in enumerate(items):
        one = Source(files.name, values, _TABLES["concepts"], f"concepts[{place}].")
        if one.read("enabled", flag, True):
            prompts = files.lines(one.read("text.prompt_path", text, ""))
            folders.append(concept_folder(one, prompts, _TABLES["concepts if shuffled"]))
        else:
            to.off(f"concepts[{place}]", values.get("path", ""), "It is switched off there.")
    set_folders(to, folders)


def _samples(files: Given, source: Source, to: Conversion) -> None:
    _interval(source, to, "sample_after", 10, "preview.every")
    items, named = _listed(
        files, source, "samples", "sample_definition_file_name", {"prompt", "diffusion_steps"}
    )
    if items is None:
        if named:
            why = "It is not here: give it with a second --from."
            to.lack("sample_definition_file_name", named, why)
        return
    if source.has("sample_definition_file_name"):
        to.off("sample_definition_file_name", named, "Its samples are read.")
    set_samples(
        [
            Source(files.name, each, _TABLES["samples"], f"samples[{place}].")
            for place, each in enumerate(items)
        ],
        to,
    )


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
