"""From what the nodes hand on to a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..trainer_core.config import RunConfig
from ..trainer_core.config.reading import load_config
from .sockets import (
    AdapterChoice,
    BaseChoice,
    DatasetChoice,
    EncodedCache,
    PreviewChoice,
    SettingsChoice,
)


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
        ConfigError: When the values are out of range or contradict each other.
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
    return load_config(values)
