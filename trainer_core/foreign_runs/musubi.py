"""Trainings of musubi-tuner: a command line, a TOML of its arguments, a TOML of its datasets.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py``,
``training/trainer_base.py``, ``networks/``, and the scripts ``*_train_network.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..families.run_files import words_elsewhere
from .musubi_datasets import DATASET, GENERAL, read_datasets
from .musubi_keys import ARGUMENTS, OPTIONS, SCRIPT
from .musubi_prompts import set_previews
from .optimizers import note_number, set_optimizer
from .program import Given, Program, other_script, script_of, set_family
from .rules import (
    Conversion,
    Source,
    UnfitError,
    flag,
    number,
    text,
    texts,
    whole,
)
from .vocabulary import set_schedule, set_trackers

_NAME = "musubi-tuner"
_SCRIPT = "train_network.py"
_OF_SD_SCRIPTS = ("pretrained_model_name_or_path", "subsets")
_LAUNCH = (
    "num_cpu_threads_per_process",
    "num_processes",
    "num_machines",
    "gpu_ids",
    "main_process_port",
    "config_file",
    "multi_gpu",
    "machine_rank",
)


def _scripts() -> list[str]:
    """The scripts of the architectures that are trained here."""
    return list(dict.fromkeys(f"{word.split()[0]}_{_SCRIPT}" for word in words_elsewhere(_NAME)))


def _convert(given: Given, to: Conversion) -> None:
    for document in given.documents:
        words = document.values.get("command", ())
        if document.format == "command" and script_of(words).lower() not in _scripts():
            raise other_script(document.name, words, _scripts())
    arguments, datasets = _parts(given, to)
    listed = datasets[1]["datasets"] if datasets else []
    keys = {*arguments, *(key for each in listed if isinstance(each, Mapping) for key in each)}
    if found := keys.intersection(_OF_SD_SCRIPTS):
        raise InputError(
            f"{given.name} has {found.pop()}, an argument of sd-scripts",
            "arguments of musubi-tuner, where dit names the base, or its datasets, without subsets",
            "Commands and files of sd-scripts are not read: their arguments mean something else.",
        )
    source = Source(given.name, arguments, ARGUMENTS)
    if arguments:
        source.apply(to)
        _family(given, source, to)
        _adapter(source, to)
        _optimizer(source, to)
        _noise(source, to)
        _memory(source, to)
        _run(source, to)
        set_previews(given, source, to)
    elif given.family:
        to.say("family", given.family, "family", given.family)
    else:
        to.lack("dit", "", "A file of datasets alone names no model: set family and base.path.")
    if datasets is not None:
        read_datasets(*datasets, to)
    elif source.given("dataset_config"):
        to.lack(
            "dataset_config",
            source.values["dataset_config"],
            "It is not here: give it behind the other file, with a second --from.",
        )


def _parts(
    given: Given, to: Conversion
) -> tuple[Mapping[str, Any], tuple[str, Mapping[str, Any]] | None]:
    """The arguments of a training, from a command and the file that it names, and the datasets."""
    arguments: dict[str, Any] = {}
    datasets: tuple[str, Mapping[str, Any]] | None = None
    waiting = list(given.documents)
    for document in waiting:
        if document.format == "command":
            said = _read_command(document.values["command"], to)
            named = said.get("config_file")
            found = given.find(_toml(named)) if isinstance(named, str) else None
            if isinstance(named, str) and found is None and len(given.documents) == 1:
                to.lack("config_file", named, "It is not here: give it with a second --from.")
            arguments |= {**(_without_sections(found.values) if found else {}), **said}
        elif _has_datasets(document.values):
            datasets = document.name, document.values
        else:
            arguments = {**_without_sections(document.values), **arguments}
    named = arguments.get("dataset_config")
    if datasets is None and isinstance(named, str):
        found = given.find(named)
        datasets = (found.name, found.values) if found and _has_datasets(found.values) else None
    return arguments, datasets


def _toml(name: str) -> str:
    return name if name.endswith(".toml") else f"{name}.toml"


def _without_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """A file of arguments may put them into sections of any name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return flat


def _read_command(words: Sequence[str], to: Conversion) -> dict[str, Any]:
    """The arguments behind the script; those of accelerate in front of it are noted."""
    place = next(at for at, word in enumerate(words) if script_of([word]))
    script = script_of(words).lower().removesuffix(f"_{_SCRIPT}")
    arguments: dict[str, Any] = {SCRIPT: script}
    for name, value in _flags(words[:place], to):
        if name == "mixed_precision":
            arguments[name] = value
        elif name in _LAUNCH:
            to.off(f"accelerate --{name}", value, "accelerate launch sets it here, too.")
        else:
            to.unknown(f"accelerate --{name}", value)
    return {**arguments, **dict(_flags(words[place + 1 :], to))}


def _flags(words: Sequence[str], to: Conversion) -> Iterator[tuple[str, Any]]:
    """``--name``, ``--name value``, ``--name=value`` or ``--name value value ...``."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("--"):
            if not word.startswith("-") and place > 2:
                to.unknown(word, "")
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        values = [value] if equals else []
        while place < len(words) and not words[place].startswith("--") and not equals:
            values.append(words[place])
            place += 1
            if name not in OPTIONS:
                break
        yield name, values if name in OPTIONS else values[0] if values else True


def _family(given: Given, source: Source, to: Conversion) -> None:
    script = source.read(SCRIPT, text, "")
    version = source.read("model_version", text, "").lower()
    for key, name in (("edit_plus", "edit-2509"), ("edit", "edit")):
        if source.read(key, flag, False) and not version:
            version = name
    word = f"{script} {version}".strip() if script else ""
    key = SCRIPT if script or not version else "model_version"
    set_family(to, given, _NAME, key, word)


_KINDS = {"lora": "lora", "loha": "loha", "lokr": "lokr"}


def _adapter(source: Source, to: Conversion) -> None:
    module = source.read("network_module", text, "networks.lora")
    name = module.rsplit(".", 1)[-1]
    kind = _KINDS.get(name.split("_")[0])
    if kind is None:
        to.lack("network_module", module, "There is no such kind here; lora stands in its place.")
    to.say(
        "adapter.kind",
        kind or "lora",
        "network_module",
        module,
        given=source.given("network_module") and kind is not None,
    )
    to.say("adapter.init", "lycoris", "network_module", "kaiming", given=False)
    if kind == "lokr":
        to.say("adapter.factor", -1, "network_args (factor)", -1, given=False)
    for key, value in _pairs(source, "network_args", to):
        _network_argument(source, key, value, to)
    weights = source.read("base_weights", texts, [])
    if weights:
        strengths = source.read("base_weights_multiplier", lambda v: [number(x) for x in v], [])
        strengths += [1.0] * (len(weights) - len(strengths))
        pairs = zip(weights, strengths, strict=False)
        listed = [{"path": path, "strength": strength} for path, strength in pairs]
        to.say("base.adapters", listed, "base_weights", weights)
    if source.read("no_metadata", flag, False):
        to.say("output.metadata", "none", "no_metadata", True)


_OF_NETWORK = {
    "rank_dropout": ("adapter.rank_dropout", number),
    "module_dropout": ("adapter.module_dropout", number),
    "loraplus_lr_ratio": ("training.optimizer.lora_plus_ratio", number),
    "factor": ("adapter.factor", whole),
}
_PATTERNS = {"exclude_patterns": "adapter.exclude", "include_patterns": "adapter.include"}


def _network_argument(source: Source, key: str, value: str, to: Conversion) -> None:
    name = f"network_args ({key})"
    if key in _OF_NETWORK:
        setting, read = _OF_NETWORK[key]
        to.say(setting, source.check(name, value, read), name, value)
    elif key in _PATTERNS:
        ours = source.check(name, value, _patterns)
        to.say(_PATTERNS[key], ours, name, value, "Names there may be the model's own.")
    elif key in {"conv_dim", "conv_alpha"}:
        to.lack(name, value, "The layers that are adapted have no convolutions.")
    elif key == "verbose":
        to.off(name, value)
    else:
        to.unknown(name, value)


def _patterns(value: str) -> list[str]:
    """What that program reads as a list of Python's; a shell may have taken the quotes in it."""
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return found
    raise UnfitError(
        "a list of patterns in quotes, as \"exclude_patterns=[r'.*mlp.*']\" in quotes of its own "
        "that keep those inside from the shell"
    )


def _pairs(source: Source, key: str, to: Conversion) -> Iterator[tuple[str, str]]:
    """Items of the form ``name=value``."""
    for each in source.read(key, texts, []):
        name, equals, value = each.partition("=")
        if equals:
            yield name.strip(), value.strip()
        else:
            to.unknown(f"{key} {each}", "")


def _optimizer(source: Source, to: Conversion) -> None:
    said: dict[str, Any] = {}
    kind = source.read("optimizer_type", text, "AdamW") or "AdamW"
    for key, value in _pairs(source, "optimizer_args", to):
        name = f"optimizer_args ({key})"
        if key == "betas":
            parts = [part.strip() for part in value.strip("()[] ").split(",") if part.strip()]
            both = [source.check(name, part, number) for part in parts]
            said |= {f"beta{at}": (name, each) for at, each in enumerate(both[:2], 1)}
        elif key in {"weight_decay", "eps", "momentum"}:
            said[key] = (name, source.check(name, value, number))
        else:
            note_number(to, kind, name, key, value)
    set_optimizer(to, ("optimizer_type", kind), said, named=source.given("optimizer_type"))
    _schedule(source, to)


def _schedule(source: Source, to: Conversion) -> None:
    name = source.read("lr_scheduler", text, "constant")
    cycles = source.read("lr_scheduler_num_cycles", whole, 1)
    power = source.read("lr_scheduler_power", number, 1.0)
    rex = name.lower() == "rex"
    ratio = source.read("lr_scheduler_min_lr_ratio", number, 0.01 if rex else 0.0)
    decay = source.read("lr_decay_steps", number, 0.0)
    share = ("lr_decay_steps", decay) if 0 < decay <= 1 else None
    set_schedule(
        to,
        ("lr_scheduler", name),
        cycles=("lr_scheduler_num_cycles", cycles),
        power=("lr_scheduler_power", power),
        min_ratio=("lr_scheduler_min_lr_ratio", ratio),
        decay_share=share,
        named=source.given("lr_scheduler"),
    )
    for key in ("lr_scheduler_num_cycles", "lr_scheduler_power", "lr_scheduler_min_lr_ratio"):
        if source.given(key) and not any(note.key == key for note in to.notes):
            to.off(key, source.values[key], "It means nothing with this schedule.")
    if source.given("lr_decay_steps") and share is None:
        to.lack("lr_decay_steps", decay, "Set training.schedule.decay_share to a share.")
    warmup = source.read("lr_warmup_steps", number, 0.0)
    if 0 < warmup < 1:
        to.say("training.schedule.warmup_share", warmup, "lr_warmup_steps", warmup)
    elif warmup:
        to.say("training.schedule.warmup_steps", int(warmup), "lr_warmup_steps", warmup)
    elif source.given("lr_warmup_steps"):
        to.off("lr_warmup_steps", warmup)


_DENSITY = "training.sigma.density"
_OF_BASE = ("flux_shift", "flux2_shift", "qwen_shift", "krea2_shift")


def _noise(source: Source, to: Conversion) -> None:
    """Which noise levels are trained, and how they count."""
    kind = source.read("timestep_sampling", text, "sigma")
    said = ("timestep_sampling", kind)
    shift = source.read("discrete_flow_shift", number, 1.0)
    used = {"timestep_sampling", "weighting_scheme"}
    if kind == "sigma":
        used |= _by_weighting(source, shift, to)
    elif kind == "uniform":
        to.say(_DENSITY, "uniform", *said)
    elif kind in {"sigmoid", "shift", *_OF_BASE}:
        used |= _moved(source, kind, shift, to)
    elif kind == "logsnr":
        used |= {"logit_mean", "logit_std"}
        source.say(to, _DENSITY, "logit_normal", *said)
        for key, setting, factor, usual in (
            ("logit_mean", "mean", -0.5, 0.0),
            ("logit_std", "std", 0.5, 1.0),
        ):
            value = source.read(key, number, usual)
            source.say(to, f"training.sigma.{setting}", value * factor + 0.0, key, value)
    elif kind.startswith("qinglong"):
        to.say(_DENSITY, "shifted", *said, "The largest part of its mixture of densities.")
    else:
        to.lack(*said, "There is no such density here.")
    _weighting(source, kind, to)
    _bounds(source, kind, to)
    for key in ("discrete_flow_shift", "sigmoid_scale", "logit_mean", "logit_std", "mode_scale"):
        if key not in used:
            source.off(to, key, why=f"It means nothing with timestep_sampling {kind}.")
    if source.read("num_timestep_buckets", whole, 0) > 1:
        said = source.values["num_timestep_buckets"]
        near = "Spread evenly over each step here, over each epoch there."
        source.say(to, "training.sigma.stratified", True, "num_timestep_buckets", said, near)


def _moved(source: Source, kind: str, shift: float, to: Conversion) -> set[str]:
    said = ("timestep_sampling", kind)
    scale = source.read("sigmoid_scale", number, 1.0)
    moves = kind in _OF_BASE or (kind == "shift" and shift != 1.0)
    near = "Moved as the base's own scheduler says." if kind in _OF_BASE else ""
    to.say(_DENSITY, "shifted" if moves else "logit_normal", *said, near)
    if kind == "shift" and moves:
        to.say("training.sigma.shift", shift, "discrete_flow_shift", shift)
    source.say(to, "training.sigma.std", scale, "sigmoid_scale")
    return {"sigmoid_scale"} | ({"discrete_flow_shift"} if kind == "shift" else set())


def _by_weighting(source: Source, shift: float, to: Conversion) -> set[str]:
    """timestep_sampling sigma: the weighting scheme is the density, on the moved levels."""
    scheme = source.read("weighting_scheme", text, "none")
    key = "weighting_scheme"
    used = {"discrete_flow_shift"}
    if scheme == "logit_normal":
        mean = source.read("logit_mean", number, 0.0)
        std = source.read("logit_std", number, 1.0)
        to.say(_DENSITY, "shifted" if shift != 1 else "logit_normal", key, scheme)
        # Levels are counted from noise there.
        source.say(to, "training.sigma.mean", -mean + 0.0, "logit_mean", mean)
        source.say(to, "training.sigma.std", std, "logit_std")
        used |= {"logit_mean", "logit_std"}
    elif scheme == "mode":
        scale = source.read("mode_scale", number, 1.29)
        to.say(_DENSITY, "mode", key, scheme)
        source.say(to, "training.sigma.mode_scale", scale, "mode_scale")
        used.add("mode_scale")
    else:
        source.say(to, _DENSITY, "uniform", "timestep_sampling", "sigma")
    if shift != 1:
        to.say("training.sigma.shift", shift, "discrete_flow_shift", shift)
    else:
        source.off(to, "discrete_flow_shift", why="1 moves nothing.")
    return used


def _weighting(source: Source, kind: str, to: Conversion) -> None:
    scheme = source.read("weighting_scheme", text, "none")
    if scheme in {"sigma_sqrt", "cosmap"}:
        to.say("training.loss.weighting", scheme, "weighting_scheme", scheme)
    elif source.given("weighting_scheme") and (scheme == "none" or kind != "sigma"):
        to.off("weighting_scheme", scheme)


def _bounds(source: Source, kind: str, to: Conversion) -> None:
    cut = source.read("preserve_distribution_shape", flag, False) or kind in {"uniform"}
    near = "" if cut else "Cut off here; there the whole density is pressed between the bounds."
    for key, setting in (("min_timestep", "min"), ("max_timestep", "max")):
        if source.given(key):
            value = source.read(key, number)
            to.say(f"training.sigma.{setting}", value / 1000, key, value, near)
    source.off(to, "preserve_distribution_shape", why="Bounds always cut off here.")


def _memory(source: Source, to: Conversion) -> None:
    swapped = source.read("blocks_to_swap", whole, 0)
    checkpoint = source.read("gradient_checkpointing", flag, False)
    if swapped and not checkpoint:
        to.lack("gradient_checkpointing", checkpoint, "Swapped blocks need it here; it stays on.")
    else:
        source.say(to, "memory.gradient_checkpointing", checkpoint, "gradient_checkpointing")
    if source.read("gradient_checkpointing_cpu_offload", flag, False):
        to.say("memory.checkpoint_inputs", "ram", "gradient_checkpointing_cpu_offload", True)
    if source.given("blocks_to_swap"):
        to.say("memory.blocks_to_swap", swapped, "blocks_to_swap", swapped)
    if source.read("use_pinned_memory_for_block_swap", flag, False):
        to.say("memory.master", "pinned", "use_pinned_memory_for_block_swap", True)
    if source.read("fp8_scaled", flag, False) or source.read("fp8_base", flag, False):
        key = "fp8_scaled" if source.read("fp8_scaled", flag, False) else "fp8_base"
        to.say("memory.base_format", "fp8", key, True, "With a scale for each row of weights.")


def _run(source: Source, to: Conversion) -> None:
    """Length, checkpoints, logs."""
    if source.given("max_train_epochs"):
        to.epochs["training.steps"] = "max_train_epochs", source.read("max_train_epochs", whole)
        source.off(to, "max_train_steps", why="Epochs win over it.")
    else:
        steps = source.read("max_train_steps", whole, 1600)
        source.say(to, "training.steps", steps, "max_train_steps")
    for key, setting in (
        ("save_every_n_epochs", "training.checkpoint_every"),
        ("sample_every_n_epochs", "preview.every"),
    ):
        if epochs := source.read(key, whole, 0):
            to.epochs[setting] = key, epochs
        else:
            source.off(to, key)
    every, last = (source.read(f"save_{name}_n_steps", whole, 0) for name in ("every", "last"))
    if source.given("save_last_n_steps") and every > 0:
        said = source.values["save_last_n_steps"]
        to.say("training.keep_checkpoints", max(1, last // every), "save_last_n_steps", said)
    else:
        to.say("training.keep_checkpoints", 10_000, "save_last_n_steps", "all", given=False)
    set_trackers(source, "log_with", to)


_TELLING = {
    "network_dim",
    "network_module",
    "dit",
    "dataset_config",
    "timestep_sampling",
    "network_alpha",
    "network_args",
    "discrete_flow_shift",
}


def _has_datasets(values: Mapping[str, Any]) -> bool:
    found = values.get("datasets")
    telling = {"image_directory", "image_jsonl_file", "video_directory", "video_jsonl_file"}
    telling.add("subsets")  # of sd-scripts, to refuse it by name
    return isinstance(found, list) and any(
        isinstance(each, Mapping) and telling & each.keys() for each in found
    )


def _is_training(values: Mapping[str, Any]) -> bool:
    if _has_datasets(values):
        return True
    words = values.get("command")
    if isinstance(words, list) and all(isinstance(each, str) for each in words):
        return _SCRIPT in script_of(words).lower()
    return len(_TELLING & _without_sections(values).keys()) >= 2


PROGRAM = Program(
    name=_NAME,
    version="30c658c4",
    tables={"arguments": ARGUMENTS, "general": GENERAL, "datasets": DATASET},
    marks={"arguments of a training, or datasets": _is_training},
    convert=_convert,
    beside=_is_training,
    scripts=_scripts,
)
