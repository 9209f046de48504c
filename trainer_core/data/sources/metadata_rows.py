"""From the rows of a metadata file to values that a sample may have.

Nothing here touches the disk: a row names files, and `KnownFiles` says which of them are there.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import DatasetSection
from ...config.folders import FolderSection
from ...config.section import bounds_in_words
from ...printable import shortened
from .caption_files import LARGEST_CAPTION, broken_letter, without_marks
from .list_files import composed
from .metadata_columns import Columns
from .metadata_file import as_list

_SHOWN = 80


class KnownFiles:
    """The images that lie in a folder, found by the names that a metadata file gives them.

    Args:
        names: Paths of its images below it, with forward slashes.
        base: Where the metadata file lies below it; empty or with a slash at its end.
    """

    def __init__(self, root: Path, names: Iterable[str], base: str = "") -> None:
        self._root, self._base = root, base
        self._names = {composed(name): name for name in names}
        self._folded: dict[str, str] | None = None

    def find(self, text: str) -> tuple[str, str]:
        """The name below the folder of the file that a row means, or why there is none.

        Args:
            text: What the row says, relative to the metadata file. A path from the top of the disk
                is taken where it leads into the dataset folder.
        """
        name = self._names.get(self._base + text)
        if name is not None:
            return name, ""
        written = text.strip()
        inside = ""
        # A backslash parts folders where the file was written on Windows.
        slashes = written.replace("\\", "/")
        for form in dict.fromkeys((written, slashes, self._below(slashes))):
            path = self._inside(form)
            if path is None:
                return "", "leads out of the dataset folder"
            inside = path
            name = self._names.get(composed(path))
            if name is not None:
                return name, ""
        return "", f"is not there{self._like(inside)}"

    def _below(self, written: str) -> str:
        """The rest of a path that begins with the last folders of the metadata file's own."""
        parts = posixpath.normpath(written).split("/")
        own = (self._root / self._base).absolute().parts
        depth = next((n for n in range(len(parts) - 1, 0, -1) if own[-n:] == (*parts[:n],)), 0)
        return "/".join(parts[depth:]) if depth else written

    def _inside(self, written: str) -> str | None:
        """Path below the dataset folder; None where it leads out of it."""
        if Path(written).is_absolute() or written.startswith(("/", "~")) or written[1:2] == ":":
            try:
                path = Path(os.path.normpath(written)).relative_to(self._root.absolute())
            except ValueError:
                return None
            return path.as_posix()
        path = posixpath.normpath(self._base + written)
        return None if path == ".." or path.startswith("../") else path

    def _like(self, name: str) -> str:
        if self._folded is None:
            self._folded = {each.casefold(): each for each in self._names}
        near = self._folded.get(composed(name).casefold())
        return f", but {near} is: upper and lower case differ" if near else ""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a row says, checked.

    Attributes:
        captions: Its texts; None where the row says nothing, and a caption file may.
        controls: Its control images as they are written, in order.
        repeats: At least 1.
        weight: At least 0.
    """

    image: str
    captions: tuple[str, ...] | None
    controls: tuple[str, ...]
    mask: str | None
    repeats: int
    weight: float


def read_entry(values: Mapping[str, Any], columns: Columns) -> Entry:
    """Check the values of a row.

    Raises:
        ValueError: When a value is none that a sample can have; its text says which and why.
    """
    single = columns.single
    image = values.get(single["image"])
    if not isinstance(image, str) or not image.strip():
        raise ValueError(f"{single['image']} is {_shown(image)}, not the path of an image")
    mask = values.get(single.get("mask", ""))
    if mask is not None and (not isinstance(mask, str) or not mask.strip()):
        raise ValueError(f"{single['mask']} is {_shown(mask)}, not the path of a mask")
    repeats = values.get(single.get("repeats", ""), 1)
    weight = values.get(single.get("weight", ""), 1.0)
    return Entry(
        image=image,
        captions=_captions(values, single.get("caption", "")),
        controls=_controls(values, columns),
        mask=mask,
        repeats=int(_number(repeats, single.get("repeats", ""), whole=True)),
        weight=_number(weight, single.get("weight", ""), whole=False),
    )


def _captions(values: Mapping[str, Any], column: str) -> tuple[str, ...] | None:
    if column not in values or values[column] is None:
        return None
    value = values[column]
    texts = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{column} is {_shown(value)}, not a text or a list of texts")
    broken = next((found for text in texts if (found := broken_letter(text))), "")
    if broken:
        raise ValueError(f"{column}: {broken}")
    if sum(map(len, texts)) > LARGEST_CAPTION:
        raise ValueError(f"{column} is longer than {LARGEST_CAPTION} letters")
    return tuple(map(without_marks, texts))


def _controls(values: Mapping[str, Any], columns: Columns) -> tuple[str, ...]:
    found: list[str] = []
    blank = ""
    for _, column in columns.controls:
        value = values.get(column)
        if value is None or value == "" or value == []:
            blank = blank or column
            continue
        if blank:
            raise ValueError(f"{column} names a control image, and {blank} before it does not")
        texts = as_list(value)
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(f"{column} is {_shown(value)}, not the path of a control image")
        found += texts
    return tuple(found)


def _number(value: Any, column: str, *, whole: bool) -> float:
    """A number within the bounds of the setting that it is multiplied with."""
    bounds = DatasetSection.model_fields["num_repeats"]
    if not whole:
        bounds = FolderSection.model_fields["weight"]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    least, most = _bound(bounds, "ge"), _bound(bounds, "le")
    if not (least <= number <= most) or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{column} is {_shown(value)}, not {kind}, {bounds_in_words(bounds)}")
    return number


def _bound(field: Any, name: str) -> float:
    return next(getattr(part, name) for part in field.metadata if hasattr(part, name))


def _shown(value: Any) -> str:
    return shortened(repr(value), _SHOWN)
