"""The arguments of kohya's programs, those of both and of each, and how their files are told apart.

Their tables are ``keys/kohya.txt``, ``keys/musubi.txt`` and ``keys/sd_scripts.txt``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from .program import script_of
from .rules import Maps, Table, Together, UnfitError, flag, text
from .table_text import read_tables
from .vocabulary import sides

Values = Mapping[str, Any]

TRAIN = "train_network.py"
SD_SCRIPTS = ("", "sdxl_", "flux_", "sd3_", "lumina_", "anima_", "hunyuan_image_")
"""What stands in front of `TRAIN` in the scripts of sd-scripts that train an adapter."""

OPTIONS = (
    *("optimizer_args", "network_args", "lr_scheduler_args", "base_weights"),
    *("base_weights_multiplier", "text_encoder_lr"),
)
"""Arguments that take several values."""

SCRIPT = "the script"
"""Stands for the script's name among the arguments; none of them has a name of two words."""


def _patterns(value: Any) -> list[str]:
    """What musubi reads as a list of Python's; a shell may have taken the quotes in it."""
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


def _size(value: Any) -> int:
    """One side, ``width,height``, or a list of both."""
    return sides([each.strip() for each in value.split(",")] if isinstance(value, str) else value)


_BOTH = read_tables("kohya")
_SHARED: Table = {SCRIPT: Together("family, base.variant"), **_BOTH["arguments"]}

MUSUBI = read_tables("musubi", patterns=_patterns)
MUSUBI["arguments"] = {**_SHARED, **MUSUBI["arguments"]}
MUSUBI["network_args"] = {**_BOTH["network_args"], **MUSUBI["network_args"]}
MUSUBI["datasets"] = {**MUSUBI["general"], **MUSUBI["datasets"]}

SD = read_tables(
    "sd_scripts",
    size=_size,
    spread=lambda value: not flag(value),
    before=lambda value: f"{text(value)} ",
    behind=lambda value: f" {text(value)}",
)
EVERYWHERE = SD.pop("everywhere")
"""What an argument, ``general``, a dataset and a subset of sd-scripts may say, the last first."""

_PASSED_ON = {
    key: Together(rule.setting) if isinstance(rule, Maps) else rule
    for key, rule in EVERYWHERE.items()
}
SD["arguments"] = {**_SHARED, **_PASSED_ON, **SD["arguments"]}
SD["network_args"] = {**_BOTH["network_args"], **SD["network_args"]}
SD["datasets"] = {**EVERYWHERE, **SD.pop("subset")}

_OF_SD = SD["arguments"].keys() - MUSUBI["arguments"].keys()
_OF_MUSUBI = MUSUBI["arguments"].keys() - SD["arguments"].keys()
_TELLING = {
    *("network_module", "network_dim", "network_alpha", "network_args", "train_data_dir"),
    *("dataset_config", "network_train_unet_only"),
}


def without_sections(values: Values) -> dict[str, Any]:
    """Flatten a file of arguments, which may put them into sections of any name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return flat


def script_word(values: Values) -> str:
    """The script of a command in small letters; empty where the values are no command."""
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


def has_subsets(values: Values) -> bool:
    """Whether a file lists datasets as sd-scripts does, with subsets."""
    return lists_datasets(values, "subsets")


def is_of_sd_scripts(values: Values) -> bool:
    """Whether a file has arguments of a training of sd-scripts, or its datasets."""
    if script := script_word(values):
        return script in [f"{each}{TRAIN}" for each in SD_SCRIPTS]
    keys = without_sections(values).keys()
    own = len(keys & _OF_SD) > len(keys & _OF_MUSUBI)
    return has_subsets(values) or bool(own and keys & _TELLING)
