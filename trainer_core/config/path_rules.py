"""Paths in a run file: where they stand, and what none can be."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from ..printable import shortened, single_line
from .dialect import BACKSLASHES

PATH_SETTINGS = (
    "base.path",
    "base.encoders",
    "base.adapters",
    "dataset.path",
    "dataset.regularization.path",
    "dataset.control_folders",
    "dataset.mask_folder",
    "dataset.folders",
    "cache.dir",
    "cache.manifest",
    "adapter.start_from",
    "preview.controls",
    "output.dir",
    "resume",
)
"""Settings that hold a path, a list of them, or a list of sections with `PATHS_INSIDE`."""

PATHS_INSIDE = ("path", "control_folders", "mask_folder")

NO_PATH = {
    "base.path": {"embedded"},
    "resume": {"none", "latest", "auto", "best"},
    "dataset.path": {""},
    "dataset.mask_folder": {""},
    "dataset.regularization.path": {""},
}
"""Words that such a setting knows besides; the empty one where none is meant."""

_LONGEST = 300
_CONTROLS = {"Cc", "Zl", "Zp"}


def path_contradictions(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What no path can be, among the values of a run file."""
    for setting in (*PATH_SETTINGS, "dataset.metadata"):
        place: Any = values
        for name in setting.split("."):
            place = place.get(name) if isinstance(place, Mapping) else None
        for inside, text in _paths_in(place):
            where = f"{setting} ({inside})" if inside else setting
            if _has_controls(text):
                yield (
                    f"{where} is '{shortened(single_line(text), _LONGEST)}', with control "
                    "characters",
                    "a path without line breaks, tabs and other control characters",
                    BACKSLASHES,
                )
            elif (
                not text.strip()
                and inside != "mask_folder"
                and text not in NO_PATH.get(setting, ())
            ):
                yield f"{where} is '{text}'", "a path", f"Write one, or leave {setting} out."


def can_be_path(text: str) -> bool:
    """Whether it is neither empty nor has control characters."""
    return bool(text.strip()) and not _has_controls(text)


def _has_controls(text: str) -> bool:
    return any(unicodedata.category(letter) in _CONTROLS for letter in text)


def _paths_in(value: Any, inside: str = "") -> Iterator[tuple[str, str]]:
    """The paths of a value, each with the name in a section that it has."""
    if isinstance(value, list):
        for item in value:
            yield from _paths_in(item, inside)
    elif isinstance(value, Mapping):
        for name in PATHS_INSIDE:
            yield from _paths_in(value.get(name), name)
    elif isinstance(value, str):
        yield inside, value
