"""Settings that speak of one adapter kind alone, and what becomes of them with another kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .adapter import AdapterConfig

OF_KIND: Mapping[str, str] = {
    "adapter.factor": "lokr",
    "adapter.full_matrix": "lokr",
    "adapter.decompose_both": "lokr",
    "adapter.unbalanced": "lokr",
    "adapter.init": "lora",
    "training.optimizer.lora_plus_ratio": "lora",
}
"""YAML path of a setting to the kind that it belongs to."""

INIT_OF_EVERY_KIND = ("default", "lycoris")
"""Values of ``adapter.init`` that every kind has."""


UNUSED_BY: Mapping[str, Mapping[str, str]] = {
    "oft": {
        "alpha": "a rotation is multiplied by nothing, and readers take alpha for its limit",
        "alpha_pattern": "a rotation is multiplied by nothing",
        "rslora": "a rotation is multiplied by nothing",
        "dora": "a rotation keeps the columns' lengths, and no reader knows both",
        "exact_delta": "base and rotation are no one product",
        "dropout": "a rotation takes the layer's output, and none of its inputs",
        "tucker": "a rotation has no window",
    }
}
"""Kind to the settings of the adapter that mean nothing with it, to why."""


def drop_of_other_kind(
    values: dict[str, Any], change: Mapping[str, Any], kept: Collection[str]
) -> list[str]:
    """Leave out what a run file says of its own kind, where an override names another one.

    A template writes the settings of its kind into the file, so that they need not be the user's
    wish. What the override itself says, or what never fitted the file's own kind, stays and is
    refused later.

    Args:
        values: The run file's raw values, changed in place.
        change: The raw values of the overrides.
        kept: YAML paths that the overrides set.

    Returns:
        The settings that were left out, such as ``adapter.factor (4)``.
    """
    given, wanted = values.get("adapter"), _section(change, "adapter").get("kind")
    if wanted is None or not isinstance(given, dict):
        return []
    own = given.get("kind", AdapterConfig.model_fields["kind"].default)
    dropped = []
    for path, kind in OF_KIND.items():
        *sections, name = path.split(".")
        place: Any = values
        for section in sections:
            place = _section(place, section)
        if kind != own or kind == wanted or path in kept or name not in place:
            continue
        if name == "init" and place[name] in INIT_OF_EVERY_KIND:
            continue
        dropped.append(f"{path} ({place.pop(name)})")
    return dropped


def _section(values: Any, name: str) -> dict[str, Any]:
    found = values.get(name) if isinstance(values, Mapping) else None
    return found if isinstance(found, dict) else {}
