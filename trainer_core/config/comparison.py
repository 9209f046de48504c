"""Settings as a checkpoint keeps them, to be compared when a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLACES = frozenset({"path", "metadata", "control_folders", "mask_folder", "subfolders"})


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, by YAML path."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        # A pattern table is one setting: its keys are regular expressions, not names.
        if isinstance(value, dict) and not path.endswith("_pattern"):
            flat |= flattened(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def folder_without_places(folder: Mapping[str, Any]) -> dict[str, Any]:
    """What one of ``dataset.folders`` says otherwise, but for where it is.

    Its images are compared by content. What it leaves unset is left out, so that a setting which
    an older version did not have makes no difference.
    """
    said = {name: value for name, value in folder.items() if value is not None}
    return {name: value for name, value in said.items() if name not in _PLACES}
