"""What a person chose for single images: to leave one out, or to keep another part of it.

It lies beside the images, in a file that is not part of the dataset, so that it holds wherever the
folder is trained. Names are paths below the folder with forward slashes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import DatasetError
from ...filesystem.allowed_folders import AllowedFolders
from ...filesystem.text_files import read_object
from .list_files import composed

FILE = ".adapter_trainer.json"

Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ImageChoices:
    """The choices of a folder.

    Attributes:
        focus: Name to the place, as shares of width and height, that is to be in the middle of
            what is kept.
    """

    left_out: frozenset[str] = frozenset()
    focus: Mapping[str, Place] = field(default_factory=dict)

    def leaves_out(self, name: str) -> bool:
        """Whether an image is left out."""
        return bool(self.left_out) and composed(name) in self.left_out

    def focus_of(self, name: str) -> Place | None:
        """What is to be in the middle of what is kept of an image; None where nobody said so."""
        return self.focus.get(composed(name)) if self.focus else None


def read_choices(folder: Path, within: AllowedFolders | None = None) -> ImageChoices:
    """The choices for a dataset folder; none where there is no such file.

    Raises:
        DatasetError: When its file cannot be read, or is a link that leads elsewhere.
    """
    path = folder / FILE

    def refuse(reason: str) -> DatasetError:
        remedy = "Remove the file: all images are then trained as usual."
        return DatasetError(f"{path}: {reason}", "choices that were made at the images", remedy)

    if not path.is_file():
        return ImageChoices()
    if within is not None:
        within.require(path, "dataset.path", DatasetError)
    value = read_object(path, refuse)
    left_out, focus = value.get("left_out", []), value.get("focus", {})
    if not isinstance(left_out, list) or not all(isinstance(name, str) for name in left_out):
        raise refuse("left_out is not a list of names")
    if not isinstance(focus, dict) or not all(map(_is_place, focus.values())):
        raise refuse("focus does not map names to two shares from 0 to 1")
    return ImageChoices(
        frozenset(map(composed, left_out)),
        {composed(name): (float(x), float(y)) for name, (x, y) in focus.items()},
    )


def changed_choices(folder: Path, name: str, choice: Mapping[str, Any]) -> str:
    """What `FILE` is to hold so that a choice for an image is kept, as JSON.

    Args:
        choice: ``left_out``, whether it is, or ``focus``, a place or None for the usual one.

    Raises:
        DatasetError: When the choice is none, or those before it cannot be read.
    """
    before, name = read_choices(folder), composed(name)
    left_out, focus = before.left_out - {name}, dict(before.focus)
    if choice.get("left_out", before.leaves_out(name)) is True:
        left_out |= {name}
    if "focus" in choice:
        focus.pop(name, None)
        if choice["focus"] is not None:
            if not _is_place(choice["focus"]):
                raise DatasetError("no place in an image", "two shares from 0 to 1", "Drag again.")
            focus[name] = tuple(choice["focus"])
    choices = {"left_out": sorted(left_out), "focus": dict(sorted(focus.items()))}
    return json.dumps(choices, indent=2, allow_nan=False)


def _is_place(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return all(type(each) in (int, float) and 0 <= each <= 1 for each in value)
