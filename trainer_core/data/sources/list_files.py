"""What lies in a folder: images, captions, and everything that is not read."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...errors import DatasetError
from ...filesystem.allowed_folders import AllowedFolders
from ...filesystem.file_names import (
    CLIP_EXTENSIONS,
    FOREIGN_EXTENSIONS,
    FRAME_FOLDER,
    IMAGE_EXTENSIONS,
    MOVING_EXTENSIONS,
    missing_in_words,
)
from ..frame_folders import is_frame_folder

CAPTION_EXTENSIONS = (".txt", ".caption", ".json")
"""Extensions that captions may have beside the one that is set, the first before the others."""

_FOREIGN_FOLDERS: Mapping[str, str] = {
    "_controls": "ai-toolkit: control images",
    "_latent_cache": "ai-toolkit: cache",
    "_t_e_cache": "ai-toolkit: cache",
    "_clip_vision_cache": "ai-toolkit: cache",
    "_face_id_cache": "ai-toolkit: cache",
    "_thumbs": "thumbnails",
    "@eadir": "Synology: thumbnails",
    "__macosx": "macOS: what an archive remembers of its files",
}
"""Folders of other programs, in lower case, to what they hold; they are not read."""

_KEPT_ENDINGS = {*IMAGE_EXTENSIONS, *CLIP_EXTENSIONS, *FOREIGN_EXTENSIONS, *CAPTION_EXTENSIONS}
_OF_THE_SYSTEM = frozenset({"thumbs.db", "desktop.ini"})
_DEEPEST = 200  # parts of a path; some systems take no longer ones


class ListedFile(NamedTuple):
    """One file of a folder.

    Attributes:
        name: Its path below the folder with forward slashes, as the system writes it.
        key: The same without the last extension. Composed and decomposed accents count as the
            same name: macOS writes one, archives the other.
        extension: In lower case, with its dot; empty where there is none.
    """

    name: str
    key: str
    extension: str

    @property
    def shown(self) -> str:
        """The name for a message; bytes that are not UTF-8 become question marks."""
        return shown_text(self.name)


@dataclass(slots=True)
class Listing:
    """The files of a folder and its sub-folders, sorted by name.

    Attributes:
        with_clips: Whether clips are trained, so that they are listed with the images.
        images: Files with an image's extension, or a clip's.
        captions: Key to the file of the caption extension that is set.
        other_captions: Key to further files that may be its caption, the first before the others.
        foreign: Images of types that are not read.
        unread: Files that are neither, such as a README.
        special: What is not an ordinary file, such as a pipe.
        passed_over: Folders that were not read, each with the reason.
        linked_twice: Folders that were reached a second time through a link and not read again.
    """

    folder: Path
    with_clips: bool = False
    images: list[ListedFile] = field(default_factory=list)
    captions: dict[str, ListedFile] = field(default_factory=dict)
    other_captions: dict[str, list[ListedFile]] = field(default_factory=dict)
    foreign: list[ListedFile] = field(default_factory=list)
    clips: list[ListedFile] = field(default_factory=list)
    unread: list[ListedFile] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    passed_over: dict[str, str] = field(default_factory=dict)
    linked_twice: list[str] = field(default_factory=list)

    def path(self, file: ListedFile) -> Path:
        """Where one of its files is."""
        return Path(f"{self.folder}/{file.name}")

    def take(self, name: str, caption: str) -> bool:
        """Put a file where it belongs; true where it may be opened, as an image or a caption.

        Args:
            caption: The extension of captions that is set, in lower case.
        """
        dot = name.rfind(".")
        # A dot in front hides a file, and a dot at the end is not an extension.
        split = 0 < dot < len(name) - 1 and name[dot - 1] != "/" and "/" not in name[dot:]
        key, extension = (name[:dot], name[dot:].lower()) if split else (name, "")
        file = ListedFile(name, composed(key), extension)
        clip = extension in CLIP_EXTENSIONS or extension in MOVING_EXTENSIONS
        if extension in IMAGE_EXTENSIONS or (self.with_clips and clip):
            self.images.append(file)
        elif extension == caption and key not in self.captions:
            self.captions[key] = file
        elif extension == caption or extension in CAPTION_EXTENSIONS:
            self.other_captions.setdefault(key, []).append(file)
        else:
            if extension in FOREIGN_EXTENSIONS:
                self.foreign.append(file)
            elif extension in CLIP_EXTENSIONS:
                self.clips.append(file)
            elif name.rpartition("/")[2].lower() not in _OF_THE_SYSTEM:
                self.unread.append(file)
            return False
        return True

    def _sort(self) -> None:
        for files in (self.images, self.foreign, self.clips, self.unread):
            files.sort(key=lambda file: file.shown)
        keys = Counter(file.key for file in self.images)
        for key in [key for key in self.captions if key not in keys]:
            # Some programs keep the image's ending (a.png.txt), and Windows hides a second .txt.
            stem, dot, ending = key.rpartition(".")
            if keys[stem] == 1 and dot + ending.lower() in _KEPT_ENDINGS:
                self.other_captions.setdefault(stem, []).append(self.captions.pop(key))
        order = {extension: place for place, extension in enumerate(CAPTION_EXTENSIONS)}
        for files in self.other_captions.values():
            files.sort(key=lambda file: (order.get(file.extension, -1), file.name))


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
    what = "is a file" if root.is_file() else missing_in_words(path)
    raise DatasetError(f"dataset.path: {root} {what}", expected, remedy)


def shown_name(path: Path, folder: Path) -> str:
    """Path within a folder with forward slashes; bytes that are not UTF-8 become question marks."""
    return shown_text(path.relative_to(folder).as_posix())


def caption_beside(image: Path, extension: str) -> Path | None:
    """The caption file of an image, found as `list_folder` finds it; None where there is none."""
    stem = composed(image.stem)
    with _opened(str(image.parent)) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    beside = [path for path in map(image.with_name, names) if composed(path.stem) == stem]
    # JSON that is not asked for may hold several texts, or none.
    wanted = (extension.lower(), *(each for each in CAPTION_EXTENSIONS if each != ".json"))
    return next((path for end in wanted for path in beside if path.suffix.lower() == end), None)


def composed(name: str) -> str:
    """A name with composed accents: macOS writes decomposed ones, archives either."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def keys_by_name(keys: Iterable[str]) -> dict[str, list[str]]:
    """Names of images without their folders, each to the keys of all that have it."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(key.rpartition("/")[2], []).append(key)
    return found


def list_folder(
    folder: Path,
    caption_extension: str,
    within: AllowedFolders | None = None,
    *,
    subfolders: bool = True,
    without: Collection[Path] = (),
    clips: bool = False,
) -> Listing:
    """Read names in a folder and below; hidden ones are left out, links are followed once.

    Args:
        caption_extension: Such as ``.txt``; upper or lower case makes no difference.
        within: What images, captions and folders really have to lie in; None follows every link.
        subfolders: Whether to read what lies in folders below.
        without: Folders that are read for something else.

    Raises:
        DatasetError: When a folder cannot be read or is too deep, or a link leads out of what is
            allowed.
    """
    listing = Listing(folder, clips)
    caption = caption_extension.lower()
    _require_within(folder, within)
    elsewhere = {os.path.realpath(each) for each in without}
    for name, linked in _walk(folder, listing, within, subfolders=subfolders, elsewhere=elsewhere):
        if listing.take(name, caption) and linked:
            _require_within(folder / name, within)
            _require_frames_within(folder / name, within)
    listing._sort()
    return listing


class _Folder(NamedTuple):
    prefix: str  # path below the folder that is listed, with a slash at its end
    real: str
    linked: bool


def _walk(
    folder: Path,
    listing: Listing,
    within: AllowedFolders | None,
    subfolders: bool,
    elsewhere: Collection[str],
) -> Iterator[tuple[str, bool]]:
    """Names of the files below a folder, and whether each is a link; folders in order of names."""
    top, depth = str(folder), len(folder.parts)
    waiting = [_Folder("", os.path.realpath(folder), False)]
    visited: set[str] = set()
    while waiting:
        place = waiting.pop()
        if place.real in visited:
            listing.linked_twice.append(place.prefix[:-1])
            continue
        visited.add(place.real)
        path = f"{top}/{place.prefix}"
        if place.linked:
            _require_within(Path(path), within)
        _require_shallow(folder, depth + place.prefix.count("/"), place.prefix)
        with _opened(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        below: list[_Folder] = []
        for entry in found:
            name = entry.name
            if name.startswith("."):
                continue
            if entry.is_file(follow_symlinks=False):
                yield place.prefix + name, False
            elif _is_folder(entry):
                inner = _below(place, entry)
                if _is_read(inner, listing, subfolders, elsewhere):
                    below.append(inner)
            elif _is_file(entry):
                yield place.prefix + name, True
            else:
                listing.special.append(place.prefix + name)
        waiting.extend(reversed(below))


def _is_read(
    folder: _Folder, listing: Listing, subfolders: bool, elsewhere: Collection[str]
) -> bool:
    """Whether a folder is a part of the one that is listed; the listing notes why it is not."""
    name = folder.prefix[:-1].rpartition("/")[2].lower()
    reason = _FOREIGN_FOLDERS.get(name) or ("" if subfolders else "dataset.subfolders")
    if reason and folder.real not in elsewhere:
        listing.passed_over[shown_text(folder.prefix)] = reason
    return not reason and folder.real not in elsewhere


def _below(above: _Folder, entry: os.DirEntry[str]) -> _Folder:
    # A junction of Windows calls itself a folder, not a link, in older Pythons.
    linked = os.name == "nt" or entry.is_symlink()
    real = os.path.realpath(entry.path) if linked else f"{above.real}{os.sep}{entry.name}"
    return _Folder(f"{above.prefix}{entry.name}/", real, linked)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder that is looked into; one of frames is a clip."""
    try:
        return entry.is_dir() and not entry.name.lower().endswith(FRAME_FOLDER)
    except OSError:
        return False  # a link that leads to itself


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether an entry that is not an ordinary file itself leads to one or nowhere, or is a clip.

    A link that leads nowhere is told about later, as an image that cannot be read.
    """
    path = Path(entry.path)
    try:
        frames = is_frame_folder(path) and path.is_dir()
        return frames or path.is_file() or (entry.is_symlink() and not path.exists())
    except OSError:
        return False  # a link to where this user may not look


def _require_shallow(folder: Path, depth: int, prefix: str) -> None:
    if depth <= _DEEPEST:
        return
    top = folder.joinpath(*prefix.split("/")[: max(1, _DEEPEST - len(folder.parts))])
    raise DatasetError(
        f"{str(top)[:300]} holds folders inside folders, more than {_DEEPEST} deep",
        f"folders that are at most {_DEEPEST} deep",
        "Move the images further up, or leave that folder out of dataset.path.",
    )


def _opened(folder: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    try:
        return os.scandir(folder)
    except OSError as error:
        raise DatasetError(
            f"the folder {folder.rstrip('/')} cannot be read ({error.strerror})",
            "a folder whose content can be listed",
            "Give read access to the folder, or move it out of dataset.path.",
        ) from error


def _require_within(path: Path, within: AllowedFolders | None) -> None:
    if within is not None:
        within.require(path, "dataset.path", DatasetError)


def _require_frames_within(path: Path, within: AllowedFolders | None) -> None:
    if within is not None and is_frame_folder(path):
        with _opened(str(path)) as entries:
            for each in entries:
                _require_within(Path(each.path), within)


def shown_text(name: str) -> str:
    """A name for a message; bytes that are not UTF-8 become question marks."""
    if name.isascii():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
