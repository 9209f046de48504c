"""What travels between the pack's nodes, small descriptions and never weights, and their run file.

ComfyUI keeps every output in its cache, so an output must cost nothing to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...trainer_core.config import RunConfig
from ...trainer_core.errors import ConfigError, InputError
from ...trainer_core.families.run_files import load_config
from ..host.folders import checked_parts

_OWN_FOLDERS = {"cache": "encoded samples", "pictures": "pictures of the graph"}
Values = Mapping[str, Any]
"""Values of a run file's section, by the names of its settings."""


@dataclass(frozen=True, slots=True)
class DatasetChoice:
    """A dataset folder and how it is read: the run file's ``dataset`` section."""

    values: Values


@dataclass(frozen=True, slots=True)
class BaseChoice:
    """A base model: the run file's ``family``, ``base`` and ``training.precision``."""

    family: str
    values: Values
    precision: str

    @property
    def embedded(self) -> bool:
        """Whether it is the tiny base that ships with the pack and needs no other node."""
        return self.values["path"] == "embedded"


@dataclass(frozen=True, slots=True)
class PreviewChoice:
    """What previews draw: the run file's ``preview`` section without ``every``.

    Its ``controls`` are files that Preview Prompts has written.
    """

    values: Values


@dataclass(frozen=True, slots=True)
class EncodedCache:
    """A finished cache.

    Attributes:
        manifest: Its list.
        base: The base that it was encoded for.
        dataset: The dataset's settings.
        previews: What was encoded for previews, or nothing.
    """

    manifest: Path
    base: BaseChoice
    dataset: DatasetChoice
    previews: PreviewChoice | None


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """The run file's ``adapter`` section."""

    values: Values


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """Other parts of the run file, nested as there."""

    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run on disk.

    Attributes:
        folder: Its version folder.
        adapter: The adapter file that it yields, in layout comfyui.
        step: The step that this adapter is of.
    """

    folder: Path
    adapter: Path
    step: int


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lay nested values over each other; the last one wins."""
    whole: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            inner = whole.get(name)
            both = isinstance(inner, dict) and isinstance(value, Mapping)
            whole[name] = merged(inner, value) if both else _copied(value)
    return whole


def _copied(value: Any) -> Any:
    return merged(value) if isinstance(value, Mapping) else value


def base_values(base: BaseChoice) -> dict[str, Any]:
    """What a base says in a run file."""
    return {
        "family": base.family,
        "base": dict(base.values),
        "training": {"precision": base.precision},
    }


def encoding_config(
    base: BaseChoice,
    dataset: DatasetChoice,
    previews: PreviewChoice | None,
    output: str,
    options: Mapping[str, Any],
) -> RunConfig:
    """The run file of an encoding: no adapter is trained with it.

    Args:
        base: The base.
        dataset: The dataset.
        previews: Prompts to encode, or None.
        output: Folder of all runs; the cache lies in it.
        options: Further values.

    Raises:
        ConfigError: When the values are out of range or contradict each other.
    """
    return load_config(
        merged(
            base_values(base),
            {"dataset": dataset.values, "preview": previews.values if previews else {}},
            options,
            {"output": {"dir": output, "name": "cache"}},
        )
    )


def checked_run_name(name: str) -> None:
    """Refuse a name that a run of the graph cannot have.

    Args:
        name: What the input ``name`` says.

    Raises:
        InputError: When the run file refuses it, when a system cannot have a folder of that name,
            or when the folder is the pack's own.
    """
    load_config({"output": {"name": name}})
    checked_parts(name, "output.name")
    # Not every disk tells small letters from capital ones.
    if name.lower() in _OWN_FOLDERS:
        raise ConfigError(
            f"output.name is {name}, where the nodes keep {_OWN_FOLDERS[name.lower()]}",
            "a name that is no folder of the nodes",
            "Choose another name.",
        )


def name_problem(name: str | None) -> str:
    """Why a run cannot have a name, in one line, or nothing; None is not known yet."""
    if name is None:
        return ""
    try:
        checked_run_name(name)
    except InputError as error:
        return str(error).replace("\n", " ")
    return ""


def training_config(
    cache: EncodedCache,
    adapter: AdapterChoice,
    settings: SettingsChoice | None,
    own: Mapping[str, Any],
    output: str,
    *,
    draws: bool,
) -> RunConfig:
    """The run file of a training.

    Args:
        cache: The encoded samples, with base and dataset.
        adapter: The adapter.
        settings: Everything else, or None for the defaults.
        own: What the training node itself says; wins over the settings.
        output: Folder of all runs.
        draws: Whether previews can be drawn.

    Raises:
        InputError: When the values are out of range or contradict each other, or the run cannot
            have its name.
    """
    values = merged(
        base_values(cache.base),
        {
            "dataset": cache.dataset.values,
            "adapter": adapter.values,
            "preview": cache.previews.values if cache.previews else {},
            "cache": {"manifest": str(cache.manifest)},
        },
        settings.values if settings else {},
        own,
        {"output": {"dir": output}},
    )
    if not (draws and cache.previews):
        values.setdefault("preview", {})["every"] = 0
    config = load_config(values)
    checked_run_name(config.output.name)
    return config
