"""What a browser sends becomes a dataset folder: a drop is taken whole or not at all.

What arrives is kept in a folder under a temporary name, each file checked before it gets its own
name there. The end of a drop makes it the new dataset, or adds its files to one that is there.
Names come from anybody: nothing in them, or in an archive, leads out of that folder.
"""

from __future__ import annotations

import contextlib
import io
import stat
import threading
import time
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ....trainer_core.errors import DatasetError, InputError, StorageError, TrainerError
from ....trainer_core.filesystem.allowed_folders import AllowedFolders
from ....trainer_core.filesystem.storage import atomic_write, claim, move, storage_error, unlink
from ....trainer_core.filesystem.temporary import new_owner, temporary_beside
from ...host.folders import checked_parts, clear_leftovers
from .upload_names import is_metadata, is_telling, new_names

MOST_FILES = 5000
LARGEST_FILE = 256 * 2**20
LARGEST_DROP = 8 * 2**30
"""Bytes of a drop, unpacked."""

ARCHIVE = ".zip"
_USABLE = (
    "images (PNG, JPEG, WebP, AVIF, HEIC or BMP), clips (MP4, MOV, MKV, WebM, AVI or GIF), "
    "captions in UTF-8 (.txt, .caption, .json), a metadata file (metadata.jsonl, .csv or "
    ".parquet), or a .zip of them"
)
_SAVE_AS = "Save it as PNG or JPEG (a clip: as MP4, a text: as UTF-8), or leave it out."
_MOST_DROPS = 16
_IDLE_SECONDS = 3600.0
_MOST_ENTRIES = 4 * MOST_FILES
_ENTRY = b"PK\1\2"
_DEEPEST = 8
_NAME_BYTES = 200
_BLOCK = 2**20
_ODD = dict.fromkeys(map(ord, '<>:"|?*'), "_")


@dataclass(slots=True)
class Drop:
    """Files on their way into a dataset folder.

    Attributes:
        token: What the browser calls it.
        root: Where dataset folders are made.
        name: Of the folder below it.
        adds: Whether it adds to a folder that is there.
        staging: Where its files lie until the end.
        skipped: Name and reason of what is left out.
    """

    token: str
    root: Path
    name: str
    adds: bool
    staging: Path
    closing: contextlib.ExitStack
    skipped: list[tuple[str, str]] = field(default_factory=list)
    closed: bool = False
    files: int = 0
    size: int = 0
    touched: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str, content: bytes) -> int:
        """Take a file, or what an archive holds, and give how many files were taken.

        The name may be a path below the folder that was dropped.

        Raises:
            DatasetError: When it is none that is read, damaged, or too large.
            StorageError: When the disk is full.
        """
        with self.lock:
            self._require_open()
            self.touched = time.monotonic()
            if name.lower().endswith(ARCHIVE):
                return self._unpack(name, content)
            self._keep(name, io.BytesIO(content))
            return 1

    def _unpack(self, name: str, content: bytes) -> int:
        before = self.files
        # Counted before any is looked at: a million empty entries take a gigabyte of memory.
        if (entries := content.count(_ENTRY)) > _MOST_ENTRIES:
            raise _unusable(name, f"holds {entries} files, more than {_MOST_ENTRIES}")
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for entry in _entries(archive):
                    self._unpack_one(archive, entry)
        except TrainerError:
            raise
        except Exception as error:
            found = f"{name[-_NAME_BYTES:]} is not an archive that can be read ({error})"
            raise DatasetError(found, _USABLE, "Pack it again, or drop its files.") from error
        return self.files - before

    def _unpack_one(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        name = entry.filename[-_NAME_BYTES:]
        try:
            _require_type(entry.filename)
            if entry.flag_bits & 1:
                raise _unusable(name, "is locked with a password")
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise _unusable(name, "is a link")
            with archive.open(entry) as source:
                self._keep(entry.filename, source)
        except InputError as error:
            self.skipped.append((name, error.found))
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - each way of packing raises errors of its own
            self.skipped.append((name, f"it is damaged ({error})"))

    def _keep(self, name: str, source: IO[bytes]) -> None:
        _require_type(name)
        if self.files >= MOST_FILES:
            raise _unusable(name, f"is one more than the {MOST_FILES} files of a drop")
        target = self.staging.joinpath(*_safe_parts(name))

        def write(path: Path) -> None:
            written = 0
            with path.open("wb") as file:
                while block := source.read(_BLOCK):
                    written += len(block)
                    # What is refused afterwards counts too: unpacking it was the work.
                    self.size += len(block)
                    if written > LARGEST_FILE or self.size > LARGEST_DROP:
                        raise _unusable(name, "is too large")
                    file.write(block)
            _check(path, name, target.suffix.lower())

        if target.exists():
            raise _unusable(name, "comes twice")
        if any(each.is_file() for each in target.parents):
            raise _unusable(name, "lies in a folder that has the name of a file")
        atomic_write(target, write, replace=False)
        self.files += 1

    def look(self) -> Path:
        """Where that lies which will be the dataset, once all of it is here."""
        with self.lock:
            self._require_open()
            self.touched = time.monotonic()
            _unwrap(self.staging)
            return self.staging

    def _require_open(self) -> None:
        if self.closed:
            raise _over()

    def finish(self) -> tuple[str, int]:
        """Make the dataset of what was taken; gives its name, and how many files are new in it.

        Raises:
            DatasetError: When there is nothing to make it of.
            StorageError: When it cannot be made; then nothing has changed.
        """
        with self.lock, self.closing:
            self._require_open()
            self.closed = True
            if not self.files:
                why = f": {self.skipped[0][1]}" if self.skipped else ""
                raise DatasetError(
                    f"nothing that was dropped can be used{why}",
                    "images or clips, and text files of the same names",
                    "Save images as PNG or JPEG and clips as MP4, and drop them again.",
                )
            _unwrap(self.staging)
            try:
                if self.adds:
                    return self.name, _add(self.staging, self.root / self.name, self.skipped)
                self.name = free_name(self.root, self.name)
                move(self.staging, self.root / self.name)
            except OSError as error:
                raise storage_error(self.root / self.name, error) from error
            return self.name, self.files


class Drops:
    """The drops that are under way; what a browser has forgotten is removed by a later one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Drop] = {}

    def begin(self, root: Path, name: str, *, adds: bool) -> Drop:
        """Begin a drop into a folder below `root`, where dataset folders are made.

        Where it `adds`, the folder is there; else a number is put behind a name that is taken.

        Raises:
            InputError: When the name is none, or the folder is not there.
            StorageError: When nothing can be written there.
        """
        name = _folder_below(root, name, adds=adds)
        self._forget_idle()
        clear_leftovers(root)
        closing = contextlib.ExitStack()
        try:
            root.mkdir(parents=True, exist_ok=True)
            staging = closing.enter_context(temporary_beside(root / name))
            staging.mkdir()
        except OSError as error:
            closing.close()
            raise storage_error(root / name, error) from error
        owner = new_owner()
        closing.callback(owner.drop)
        drop = Drop(str(owner.token), root, name, adds=adds, staging=staging, closing=closing)
        with self._lock:
            self._open[drop.token] = drop
        return drop

    def get(self, token: str) -> Drop:
        """A drop that is under way; `InputError` where there is none of that name."""
        with self._lock:
            if token in self._open:
                return self._open[token]
        raise _over()

    def finish(self, token: str, name: str = "", *, adds: bool = False) -> tuple[str, int]:
        """End a drop, and say as `Drop.finish` does what came of it.

        Where another folder was chosen since, `name` and `adds` are as for `begin`; a name that is
        none leaves the drop as it is.
        """
        drop = self.get(token)
        if name:
            drop.name, drop.adds = _folder_below(drop.root, name, adds=adds), adds
        # One at a time: of two that want the same name, the second gets another.
        with self._lock:
            self._open.pop(token, None)
            return drop.finish()

    def cancel(self, token: str) -> None:
        """Forget a drop, if it is still there, with all that it has brought."""
        with self._lock:
            drop = self._open.pop(token, None)
        if drop is not None:
            with drop.lock:
                drop.closed = True
                drop.closing.close()

    def _forget_idle(self) -> None:
        with self._lock:
            by_age = sorted(self._open.values(), key=lambda drop: drop.touched)
        old = [each for each in by_age if time.monotonic() - each.touched > _IDLE_SECONDS]
        for drop in dict.fromkeys(each.token for each in (*old, *by_age[: 1 - _MOST_DROPS])):
            self.cancel(drop)


DROPS = Drops()


def free_name(root: Path, name: str) -> str:
    """A name that nothing has below a folder: the name, or with the first number that is free."""
    number = 1
    tried = name
    while (root / tried).exists() or (root / tried).is_symlink():
        number += 1
        tried = f"{name}_{number}"
    return tried


def _folder_below(root: Path, name: str, *, adds: bool) -> str:
    name = _folder_name(name, new=not adds)
    if adds and (not (root / name).is_dir() or (root / name).is_symlink()):
        raise InputError(f"there is no folder {name}", "one that is there", "Make a new one.")
    return name


def _folder_name(name: str, *, new: bool) -> str:
    # One that is there keeps the accents that its system gave it.
    name = unicodedata.normalize("NFC", name.strip()) if new else name
    parts = checked_parts(name, "folder", new=new)
    if len(parts) > 1 or name[0] in "._" or len(name.encode()) > _NAME_BYTES // 2:
        raise InputError(
            f"folder: {name[:80]!r}",
            "the name of one folder, that begins with a letter or digit",
            "Choose a short name, such as my_images.",
        )
    return name


def _entries(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    """The files of an archive; what systems add by themselves is left out without a word."""
    for entry in archive.infolist():
        parts = entry.filename.replace("\\", "/").split("/")
        own = any(each.startswith(".") and each not in {".", ".."} for each in parts)
        if not entry.is_dir() and not own and "__MACOSX" not in parts:
            yield entry


def _require_type(name: str) -> None:
    from ....trainer_core.data.sources.list_files import CAPTION_EXTENSIONS
    from ....trainer_core.filesystem import file_names

    extension = Path(name.replace("\\", "/")).suffix.lower()
    known = {*CAPTION_EXTENSIONS, *file_names.IMAGE_EXTENSIONS, *file_names.ONLY_CLIPS}
    if extension in file_names.FOREIGN_EXTENSIONS - known:
        raise _unusable(name, f"is {extension[1:].upper()}, which is not read")
    if extension not in known and not is_metadata(Path(name.replace("\\", "/"))):
        raise _unusable(name, "is not an image, clip, caption or metadata file")


def _safe_parts(name: str) -> tuple[str, ...]:
    """The parts of a name as they are written below the drop's folder."""
    path = unicodedata.normalize("NFC", name.replace("\\", "/"))
    if path[1:2] == ":" or path.startswith("/"):
        raise _unusable(name, "is a path of its own")
    # What only some systems refuse is no reason to lose an image; its caption gets the same name.
    parts = checked_parts(path.translate(_ODD), "file", new=False)
    if len(parts) > _DEEPEST or any(len(part.encode()) > _NAME_BYTES for part in parts):
        raise _unusable(name, "has too long a name")
    return parts


def _check(path: Path, name: str, extension: str) -> None:
    from ....trainer_core.config import DatasetSection
    from ....trainer_core.data.clips import clip_facts
    from ....trainer_core.data.image import open_image
    from ....trainer_core.data.image_decoders import NoDecoderError
    from ....trainer_core.data.sources.caption_files import caption_of
    from ....trainer_core.data.sources.list_files import CAPTION_EXTENSIONS
    from ....trainer_core.data.sources.metadata_file import read_table, refuse_table
    from ....trainer_core.filesystem.file_names import ONLY_CLIPS

    try:
        if extension in CAPTION_EXTENSIONS:
            caption_of(path, extension, DatasetSection())
        elif is_metadata(Path(name)):
            faults = read_table(path, extension).faults
            if faults:
                raise refuse_table(path, faults[0])
        elif extension in ONLY_CLIPS:
            clip_facts(path)
        else:
            open_image(path, "first_frame")
    except DatasetError as error:
        found = error.found.replace(str(path), name)
        cure = error.cure if isinstance(error, NoDecoderError) else _SAVE_AS
        raise DatasetError(found, _USABLE, cure) from error


def _over() -> InputError:
    return InputError(
        "this upload is not known any more", "one that is under way", "Drop the files again."
    )


def _unusable(name: str, why: str) -> DatasetError:
    return DatasetError(f"{name[-_NAME_BYTES:]} {why}", _USABLE, _SAVE_AS)


def _unwrap(staging: Path) -> None:
    """Take away a folder around everything, unless its name says what lies in it."""
    inside = list(staging.iterdir())
    while len(inside) == 1 and inside[0].is_dir():
        if is_telling(inside[0].name):
            return
        with temporary_beside(inside[0]) as wrapper:
            move(inside[0], wrapper)
            for each in list(wrapper.iterdir()):
                move(each, staging / each.name)
        inside = list(staging.iterdir())


def _add(staging: Path, folder: Path, skipped: list[tuple[str, str]]) -> int:
    """Give the files of a drop names in a folder; what is there stays as it is."""
    staged = sorted(path for path in staging.rglob("*") if path.is_file())
    within = AllowedFolders([folder])
    done: list[Path] = []
    try:
        for source, name in new_names(staging, staged, folder, skipped):
            target = folder / name
            within.require(target.parent, "folder", DatasetError)
            target.parent.mkdir(parents=True, exist_ok=True)
            claim(source, target)
            done.append(target)
    except BaseException:
        for target in done:
            unlink(target)
        raise
    return len(done)
