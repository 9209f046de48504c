"""What the two programs of kohya share: command lines, TOML files, adapters, schedules, previews.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py``,
``training/trainer_base.py``, ``training/sampling_prompts.py``, ``networks/``, and
kohya-ss/sd-scripts at 48d368fa, ``library/train_util.py``, ``train_network.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .conversion import Conversion, Source, Table
from .documents import script_of
from .key_table_parser import read_tables
from .optimizers import set_optimizer
from .program import ConversionInput, other_script
from .shared_settings import NOT_HERE, set_previews
from .value_readers import numbers, text, texts, whole

Values = Mapping[str, Any]
Datasets = tuple[str, Values] | None
"""The name of a file of datasets, and what it holds."""

BOTH = read_tables("kohya")[""]
TRAIN = "train_network.py"
SCRIPT = "the script"
"""What messages call the script's name."""
LISTED = ("network_args", "optimizer_args")
"""Arguments that are lists of ``name=value``."""
_SEVERAL = (*LISTED, "lr_scheduler_args", "base_weights", "base_weights_multiplier")
_SEVERAL = (*_SEVERAL, "text_encoder_lr")
"""Arguments that take several values."""
_LAUNCH = (
    *("num_cpu_threads_per_process", "num_processes", "num_machines", "gpu_ids", "multi_gpu"),
    *("main_process_port", "config_file", "machine_rank"),
)


def without_sections(values: Values) -> dict[str, Any]:
    """Flatten a file of arguments, which may put them into sections of any name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return flat


def script_word(values: Values) -> str:
    """The script of a command in small letters; empty where the values are not a command."""
    words = values.get("command")
    if isinstance(words, list) and all(isinstance(each, str) for each in words):
        return script_of(words).lower()
    return ""


def lists_datasets(values: Values, *keys: str) -> bool:
    """Whether a file lists datasets that have one of some keys."""
    found = values.get("datasets")
    return isinstance(found, list) and any(
        isinstance(each, Mapping) and not each.keys().isdisjoint(keys) for each in found
    )


def arguments_of(table: Table) -> set[str]:
    """The arguments of a program."""
    return {key for row in table.rows for key in row.keys if not {".", "("} & {*key}}


def read_parts(
    files: ConversionInput,
    to: Conversion,
    scripts: Sequence[str],
    is_dataset: Callable[[Values], bool],
) -> tuple[str, dict[str, Any], Datasets]:
    """Collect the arguments of a training, from a command and the file it names, and its datasets.

    The script's name comes first, without what all have; empty where no command names one.

    Args:
        to: Gets notes on what is not here.
        scripts: Of the program; a command that starts another one is refused.
    """
    script, arguments = "", dict[str, Any]()
    datasets: Datasets = None
    for document in files.documents:
        if document.format == "command":
            words = document.values["command"]
            if script_of(words).lower() not in scripts:
                raise other_script(document.name, words, scripts)
            script, own = _read_command(words, to)
            named = own.get("config_file")
            named = f"{named.removesuffix('.toml')}.toml" if isinstance(named, str) else ""
            found = files.find(named)
            if named and found is None and len(files.documents) == 1:
                to.missing("config_file", own["config_file"], NOT_HERE)
            arguments |= {**(without_sections(found.values) if found else {}), **own}
        elif is_dataset(document.values):
            datasets = document.name, document.values
        else:
            arguments = {**without_sections(document.values), **arguments}
    for name in LISTED:
        if arguments.get(name) is not None:
            arguments[name] = dict(_pairs(name, texts(arguments[name]), to))
    named = arguments.get("dataset_config")
    if named is not None and datasets is None:
        found = files.find(named) if isinstance(named, str) else None
        if found and is_dataset(found.values):
            datasets = found.name, found.values
        else:
            to.missing("dataset_config", named, NOT_HERE)
    return script, arguments, datasets


def _pairs(argument: str, items: Sequence[str], to: Conversion) -> Iterator[tuple[str, str]]:
    """Items of the form ``name=value``."""
    for each in items:
        name, equals, value = each.partition("=")
        if equals:
            yield name.strip(), value.strip()
        else:
            to.unknown(f"{argument} {each}", "")


def _read_command(words: Sequence[str], to: Conversion) -> tuple[str, dict[str, Any]]:
    """The script, and the arguments behind it; those of accelerate in front of it are noted."""
    place = next(at for at, word in enumerate(words) if script_of([word]))
    script = script_of(words).lower().removesuffix(TRAIN).rstrip("_")
    arguments: dict[str, Any] = {}
    for name, value in _flags(words[:place], to):
        if name == "mixed_precision":
            arguments[name] = value
        elif name in _LAUNCH:
            to.unused(f"accelerate --{name}", value, "accelerate launch sets it here, too.")
        else:
            to.unknown(f"accelerate --{name}", value)
    return script or "sd", {**arguments, **dict(_flags(words[place + 1 :], to))}


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
            if name not in _SEVERAL:
                break
        yield name, values if name in _SEVERAL else values[0] if values else True


def set_adapter(source: Source, to: Conversion, kinds: Mapping[str, str]) -> str:
    """Set the kind of adapter, what the program starts it with, and adapters in the base.

    Args:
        kinds: The program's words for kinds, to ours.

    Returns:
        The kind; empty where there is none, and lora stands in its place.
    """
    module = source.read("network_module", text, "networks.lora")
    key, word = "network_module", module.rsplit(".", 1)[-1]
    if module.startswith("lycoris") and "locon" in kinds:
        key = "network_args.algo" if source.has("network_args.algo") else key
        module = word = source.read("network_args.algo", text, "lora").lower()
    kind = kinds.get(word) or ("" if word == "lora_fa" else kinds.get(word.split("_")[0], ""))
    if not kind:
        to.missing(
            source.name(key), module, "There is no such kind here; lora stands in its place."
        )
    stated = bool(kind) and source.has("network_module")
    to.set("adapter.kind", kind or "lora", source.name(key), module, stated=stated)
    if kind == "lokr" and "adapter.factor" not in to.values:
        to.set("adapter.factor", -1, "network_args (factor)", -1, stated=False)
    if weights := source.read("base_weights", texts, []):
        strengths = source.read("base_weights_multiplier", numbers, [])
        strengths += [1.0] * (len(weights) - len(strengths))
        pairs = zip(weights, strengths, strict=False)
        adapters = [{"path": path, "strength": strength} for path, strength in pairs]
        source.set(to, "base.adapters", adapters, "base_weights", weights)
        if source.has("base_weights_multiplier"):
            to.applied("base.adapters", "base_weights_multiplier", strengths)
    return kind


def set_steps(source: Source, to: Conversion) -> None:
    """Set the optimizer with its numbers, and how many checkpoints are kept."""
    set_optimizer(source, to, "optimizer_type", "optimizer_args")
    every, last = (source.read(f"save_{name}_n_steps", whole, 0) for name in ("every", "last"))
    kept = max(1, last // every) if source.has("save_last_n_steps") and every > 0 else 0
    shown = source.values.get("save_last_n_steps") if kept else "all"
    key, setting = "save_last_n_steps", "training.keep_checkpoints"
    to.set(setting, kept or 10_000, key, shown, stated=bool(kept))


_OF_SAMPLES = (
    *("w", "h", "s", "d", "g", "l", "n", "f", "ci", "width", "height", "sample_steps", "seed"),
    *("negative_prompt", "scale", "guidance_scale", "frame_count"),
)
_FLAG = re.compile(r"\s--(?=[a-z]+\s)")


def set_samples(
    files: ConversionInput, source: Source, to: Conversion, size: int, steps: int, guidance: float
) -> None:
    """Say what previews are made of, where the file of prompts can be read.

    Args:
        size: The program's default of width and height, in pixels.
    """
    key = "sample_prompts"
    if not source.has(key):
        return
    samples = _samples_of(files, name := source.read(key, text))
    if samples is None:
        to.missing(key, name, "It is not here: write its prompts into preview.prompts.")
        return
    if not samples:
        to.unused(key, name, "The file has no prompts.")
        return
    set_previews(source, to, samples, place=key, names=_OF_SAMPLES)
    usual = {"width": size, "height": size, "steps": steps, "guidance": guidance}
    for setting, value in usual.items():
        if f"preview.{setting}" not in to.values:
            to.set(f"preview.{setting}", value, f"{key} ({setting})", value, stated=False)


def _samples_of(files: ConversionInput, name: str) -> list[Values] | None:
    """The prompts of a file, with what stands beside them; None where it cannot be read."""
    if not name.endswith((".toml", ".json")):
        lines = files.lines(name)
        if lines is None:
            return None
        return [_sample(line) for line in lines if line.strip() and not line.startswith("#")]
    found = files.find(name)
    if found is None:
        return None
    shared = found.values.get("prompt")
    shared = dict(shared) if isinstance(shared, Mapping) else {}
    items = found.values.get("list", shared.pop("subset", []))
    return [
        _sample(each) if isinstance(each, str) else {**shared, **each}
        for each in (items if isinstance(items, list) else [])
        if isinstance(each, str | Mapping)
    ]


def _sample(line: str) -> Values:
    """A prompt with flags behind it; those of control images may stand several times."""
    first, *rest = _FLAG.split(line.strip())
    pairs = [each.strip().partition(" ") for each in rest]
    flags: dict[str, Any] = {name: value.strip() for name, _, value in pairs}
    if "ci" in flags:
        flags["ci"] = [value.strip() for name, _, value in pairs if name == "ci"]
    return {"prompt": first.strip(), **flags}
