"""Folders named ``10_name``: how often their images appear, and what they show.

The way in which kohya's scripts lay out a dataset: each image lies in a folder directly below the
dataset's own, the number in front is how often it appears in an epoch, and the name behind it is
the caption of images that have no caption file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ...errors import DatasetError
from .folder_problems import Problems
from .list_files import ListedFile, Listing
from .recognize_layout import REPEATED_FOLDER

MOST_REPEATS = 10000


@dataclass(frozen=True, slots=True)
class RepeatedFolder:
    """What the name of a folder says.

    Attributes:
        caption: The text of images without caption file; None where some of the folder have one,
            so that a caption that was forgotten is not replaced in silence.
    """

    repeats: int
    caption: str | None


def repeated_folders(
    listing: Listing, images: Collection[ListedFile], problems: Problems
) -> tuple[list[ListedFile], dict[str, RepeatedFolder]]:
    """The images that lie in folders of repeats, and each folder's name to what it says.

    Args:
        images: Those of it that are not masks.
        problems: Told of images that lie elsewhere, of the repeats, and of captions that are a
            folder's name.

    Raises:
        DatasetError: When a number is not 1 to 10000.
    """
    captioned = {key.partition("/")[0] for key in (*listing.captions, *listing.other_captions)}
    kept: list[ListedFile] = []
    found: dict[str, RepeatedFolder] = {}
    for file in images:
        folder, _, below = file.name.partition("/")
        match = REPEATED_FOLDER.fullmatch(folder) if below and "/" not in below else None
        if match is None:
            problems.tell(f"left out: {file.shown} is not directly in a folder named as 10_name")
            continue
        if folder not in found:
            name = match["name"].strip()
            own = None if folder in captioned or not name else name
            found[folder] = RepeatedFolder(_repeats(match["repeats"], folder), own)
        kept.append(file)
    for folder, repeats in sorted(found.items()):
        problems.count(
            "read as repeats of kohya's folder names, {count} folder(s): {names}",
            f"{folder} ({repeats.repeats} times)",
        )
        if repeats.caption is not None:
            problems.count(
                "no image of {count} folder(s) has a caption file, so that the folder's name is "
                "their caption: {names}",
                f"{folder} ({repeats.caption!r})",
            )
    return kept, found


def tell_unused_numbers(images: Iterable[ListedFile], problems: Problems) -> None:
    """Tell of folders that are named so in a dataset that is not read so."""
    folders = {file.name.partition("/")[0] for file in images if "/" in file.name}
    named = sorted(folder for folder in folders if REPEATED_FOLDER.fullmatch(folder))
    for folder in named:
        problems.count(
            "the number in front of {count} folder(s) is not read as repeats, because other images "
            "lie elsewhere or it is large (dataset.layout: kohya reads it): {names}",
            folder,
        )


def _repeats(digits: str, folder: str) -> int:
    repeats = int(digits)
    if 1 <= repeats <= MOST_REPEATS:
        return repeats
    raise DatasetError(
        f"dataset.path: the folder {folder} asks for {repeats} repeats of its images",
        f"a number from 1 to {MOST_REPEATS} in front of the name, as in 10_name",
        "Rename the folder, or set dataset.layout: flat, which reads no repeats.",
    )
