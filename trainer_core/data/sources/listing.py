"""What lies in a folder: images, captions, and images of types that are not read."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import DatasetError
from ...filesystem.allowed_folders import AllowedFolders

IMAGE_EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})

FOREIGN_EXTENSIONS = frozenset(
    {".gif", ".tif", ".tiff", ".avif", ".heic", ".heif", ".jxl", ".jfif", ".jp2", ".tga", ".apng"}
)
"""Extensions of images that are not read; leaving them out in silence would surprise."""


_DEEPEST = 200  # parts of a path; some systems take no longer ones


@dataclass(slots=True)
class Listing:
    """The files of a folder and its sub-folders, sorted by path.

    Attributes:
        folder: The folder that was read.
        images: Files with an image's extension.
        captions: Stem (`key`) to caption file.
        foreign: Images of types that are not read.
        linked_twice: Folders that were reached a second time through a link and not read again.
    """

    folder: Path
    images: list[Path] = field(default_factory=list)
    captions: dict[str, Path] = field(default_factory=dict)
    foreign: list[Path] = field(default_factory=list)
    linked_twice: list[Path] = field(default_factory=list)

    def key(self, path: Path) -> str:
        """Path of one of its files without the last extension, with forward slashes.

        Composed and decomposed accents count as the same name: macOS writes one, archives the
        other.
        """
        relative = path.relative_to(self.folder)
        return unicodedata.normalize("NFC", relative.with_name(relative.stem).as_posix())


def dataset_root(path: str) -> Path:
    """The folder that ``dataset.path`` names.

    Raises:
        DatasetError: When there is none.
    """
    expected = "a folder with images and captions"
    remedy = "Set dataset.path to the folder of your training images."
    if not path.strip():
        raise DatasetError("dataset.path is empty", expected, remedy)
    root = Path(path).expanduser()
    if root.is_dir():
        return root
    what = "is a file" if root.is_file() else "does not exist"
    raise DatasetError(f"dataset.path: {root} {what}", expected, remedy)


def shown_name(path: Path, folder: Path) -> str:
    """Path within a folder with forward slashes; bytes that are no UTF-8 become question marks."""
    raw = path.relative_to(folder).as_posix()
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def caption_beside(image: Path, extension: str) -> Path | None:
    """The caption file of an image, found as `list_folder` finds it; None where there is none."""
    stem = unicodedata.normalize("NFC", image.stem)
    for path in _entries(image.parent):
        same = unicodedata.normalize("NFC", path.stem) == stem
        if same and path.suffix.lower() == extension.lower():
            return path
    return None


def list_folder(
    folder: Path, caption_extension: str, within: AllowedFolders | None = None
) -> Listing:
    """Read names in a folder and below; hidden ones are left out, links are followed once.

    Args:
        folder: An existing folder.
        caption_extension: Such as ``.txt``; upper or lower case makes no difference.
        within: What images, captions and folders really have to lie in; None follows every link.

    Returns:
        What was found.

    Raises:
        DatasetError: When a folder cannot be read or is too deep, or a link leads out of what is
            allowed.
    """
    listing = Listing(folder)
    caption = caption_extension.lower()
    _require_within(folder, within)
    for path in _walk(folder, {os.path.realpath(folder)}, listing.linked_twice, within):
        extension = path.suffix.lower()
        if extension not in IMAGE_EXTENSIONS | {caption}:
            if extension in FOREIGN_EXTENSIONS:
                listing.foreign.append(path)
            continue
        _require_within(path, within)
        if extension in IMAGE_EXTENSIONS:
            listing.images.append(path)
        elif extension == caption:
            listing.captions[listing.key(path)] = path
    listing.images.sort(key=lambda path: shown_name(path, folder))
    return listing


def _walk(
    folder: Path, seen: set[str], linked_twice: list[Path], within: AllowedFolders | None
) -> Iterator[Path]:
    waiting = _entries(folder)
    while waiting:
        path = waiting.pop()
        if path.is_dir():
            real = os.path.realpath(path)
            if real in seen:
                linked_twice.append(path)
                continue
            seen.add(real)
            _require_within(path, within)
            waiting += _entries(path)
        elif path.is_file() or (path.is_symlink() and not path.exists()):
            # A link that leads nowhere is told about later, as an image that cannot be read.
            yield path


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, the last name first, so that the first is taken off the end."""
    if len(folder.parts) > _DEEPEST:
        raise DatasetError(
            f"{folder.parents[len(folder.parts) - _DEEPEST]} holds folders inside folders, "
            f"more than {_DEEPEST} deep",
            f"folders that are at most {_DEEPEST} deep",
            "Move the images further up, or leave that folder out of dataset.path.",
        )
    try:
        with os.scandir(folder) as entries:
            names = sorted((entry.name for entry in entries), reverse=True)
    except OSError as error:
        raise DatasetError(
            f"the folder {folder} cannot be read ({error.strerror})",
            "a folder whose content can be listed",
            "Give read access to the folder, or move it out of dataset.path.",
        ) from error
    return [folder / name for name in names if not name.startswith(".")]


def _require_within(path: Path, within: AllowedFolders | None) -> None:
    if within is not None:
        within.require(path, "dataset.path", DatasetError)
