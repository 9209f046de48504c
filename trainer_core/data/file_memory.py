"""Remembers hashes and headers of images and clips, so that no file is read twice for them.

A file is known by its stamp (size, times, inode), so that an unchanged dataset is not read again.
The memory lies in the cache's folder and holds no paths, only their hashes, because caches are
passed on to other people.

A scan asks for headers and for what clips hold, encoding for hashes.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DatasetError
from ..filesystem.record_table import RecordTable
from .clips import ClipFacts, clip_facts
from .frame_folders import frame_files, is_frame_folder
from .image import ImageInfo
from .image_header import header_info

_CHUNK = 1 << 20
# A file changed twice within a file system's tick keeps its stamp; two seconds is FAT's tick.
_TICK_NS = 2_000_000_000
_KEY = [("name", "u1", (32,)), ("stamp", "<i8", (4,))]
_SIZE = [("width", "<u4"), ("height", "<u4")]
_OF_IMAGES = [("digest", "u1", (32,)), *_SIZE, ("flags", "<u4")]
_OF_CLIPS = [*_SIZE, ("duration", "<f8"), ("missing", "<f8")]
_HASHED, _HEADER, _ANIMATED, _ALPHA = 1, 2, 4, 8

_Stamp = tuple[int, int, int, int]


class FileMemory:
    """Hashes and headers of image files, remembered in the cache folder.

    Args:
        folder: The cache folder; None remembers only as long as this lives.
        trust: Whether what is remembered there is believed; otherwise every file is read.
    """

    def __init__(self, folder: Path | None, trust: bool = True) -> None:
        self._images = _Table(folder, "images", _OF_IMAGES, trust=trust)
        self._clips = _Table(folder, "clips", _OF_CLIPS, trust=trust)
        self._seen: dict[str, tuple[_Stamp, str]] = {}

    def image_info(self, path: Path) -> ImageInfo:
        """What an image's header says; the file is opened only where that is not remembered.

        Raises:
            DatasetError: As `image_header.header_info`.
        """
        try:
            stamp, name = _stamp_of(path.stat()), _name(path)
        except OSError:
            return header_info(path)
        digest, found = self._image(name, stamp)
        if digest:
            # The hash is asked for next: neither its status nor its name is made again then.
            self._seen[os.fspath(path)] = (stamp, digest.hex())
        if found is None:
            found = header_info(path)
            self._keep(name, stamp, digest, found)
        return found

    def clip_facts(self, path: Path, rate: float) -> ClipFacts:
        """What a clip holds; it is opened only where that is not remembered.

        Args:
            rate: Frames per second of a folder of frames, of which nothing is remembered.

        Raises:
            DatasetError: As `clips.clip_facts`.
        """
        try:
            status = None if is_frame_folder(path) else path.stat()
        except OSError:
            status = None
        if status is None:
            return clip_facts(path, rate)
        stamp, name = _stamp_of(status), _name(path)
        if known := self._clips.get(name, stamp):
            return ClipFacts(*known)
        found = clip_facts(path, rate)
        self._clips.put(name, stamp, astuple(found))
        return found

    def of(self, path: Path) -> str:
        """SHA-256 of an image file's bytes, as 64 hexadecimal digits.

        Raises:
            DatasetError: When the file cannot be read.
        """
        text = os.fspath(path)
        if text in self._seen:
            return self._seen[text][1]
        try:
            stamp, name = _stamp_of(os.stat(text)), _name(text)  # noqa: PTH116 - many files
            known, info = self._image(name, stamp)
            if is_frame_folder(path):
                every = "".join(map(self.of, frame_files(path)))
                digest = hashlib.sha256(every.encode()).hexdigest()
            elif known:
                digest = known.hex()
            else:
                digest = hash_file(path)
                self._keep(name, stamp, bytes.fromhex(digest), info)
        except OSError as error:
            raise DatasetError(
                f"{path} cannot be read ({error.strerror})",
                "a readable image",
                "Give read access to the file, or remove it from the dataset.",
            ) from error
        self._seen[text] = (stamp, digest)
        return digest

    def check_unchanged(self, path: Path) -> None:
        """Make sure that a file is still the one that was hashed.

        Raises:
            DatasetError: When it was changed or removed in the meantime.
        """
        try:
            same = _stamp_of(path.stat()) == self._seen[os.fspath(path)][0]
        except OSError:
            same = False
        for each in frame_files(path) if same and is_frame_folder(path) else ():
            self.check_unchanged(each)
        if not same:
            raise DatasetError(
                f"{path} changed while the dataset was being encoded",
                "images that stay as they are until encoding is done",
                "Start again when nothing writes to the dataset folder.",
            )

    def save(self) -> None:
        """Write what is new to the cache folder; a folder that takes no files keeps nothing."""
        self._images.save()
        self._clips.save()

    def _image(self, name: bytes, stamp: _Stamp) -> tuple[bytes, ImageInfo | None]:
        """The hash of a file, empty where it is not known, and what its header says."""
        known = self._images.get(name, stamp)
        if known is None:
            return b"", None
        digest, width, height, flags = known
        info = ImageInfo(width, height, bool(flags & _ANIMATED), bool(flags & _ALPHA))
        return digest.tobytes() if flags & _HASHED else b"", info if flags & _HEADER else None

    def _keep(self, name: bytes, stamp: _Stamp, digest: bytes, info: ImageInfo | None) -> None:
        flags, size = _HASHED if digest else 0, (0, 0)
        if info is not None:
            size = info.width, info.height
            flags |= _HEADER | _ANIMATED * info.animated | _ALPHA * info.alpha
        content = np.frombuffer(digest or bytes(32), np.uint8)
        self._images.put(name, stamp, (content, *size, flags))


class _Table:
    """Values of files by their names and stamps: a table in the cache folder, and what is new."""

    def __init__(
        self, folder: Path | None, name: str, fields: list[tuple[Any, ...]], *, trust: bool
    ) -> None:
        fields = [*_KEY, *fields]
        self._table = RecordTable(folder / "index", name, fields, 1) if folder else None
        self._fields = [each[0] for each in fields[2:]]
        rows = np.zeros(0, np.dtype(fields))
        if trust and self._table is not None:
            rows = self._table.read()
        names = rows["name"].tobytes()
        self._place = {names[at : at + 32]: at // 32 for at in range(0, len(names), 32)}
        # Lists: a row of a table takes longer to read than the rest of a look-up.
        self._stamps: list[list[int]] = rows["stamp"].tolist()
        columns = (rows[each] for each in self._fields)
        self._columns = [each if each.ndim > 1 else each.tolist() for each in columns]
        self._new: dict[bytes, tuple[_Stamp, tuple[Any, ...]]] = {}

    def get(self, name: bytes, stamp: _Stamp) -> tuple[Any, ...] | None:
        if name in self._new:
            before, values = self._new[name]
            return values if before == stamp else None
        place = self._place.get(name)
        if place is None or tuple(self._stamps[place]) != stamp:
            return None
        return tuple(column[place] for column in self._columns)

    def put(self, name: bytes, stamp: _Stamp, values: tuple[Any, ...]) -> None:
        # A file that has just changed may change again, and keep its stamp.
        if time.time_ns() - max(stamp[1], stamp[2]) > _TICK_NS:
            self._new[name] = stamp, values

    def save(self) -> None:
        if not self._new or self._table is None:
            return
        rows = self._table.rows(len(self._new))
        rows["name"] = np.frombuffer(b"".join(self._new), np.uint8).reshape(-1, 32)
        rows["stamp"] = [stamp for stamp, _ in self._new.values()]
        columns = zip(*(values for _, values in self._new.values()), strict=True)
        for field, column in zip(self._fields, columns, strict=True):
            rows[field] = column
        self._table.add(rows)
        self._table.close()


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, read in parts."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _name(path: Path | str) -> bytes:
    text = os.fspath(path)
    whole = text if os.path.isabs(text) else str(Path(text).absolute())  # noqa: PTH117 - many files
    return hashlib.sha256(os.fsencode(whole)).digest()


def _stamp_of(status: os.stat_result) -> _Stamp:
    # An inode of Windows may have all of its 64 bits.
    inode = (status.st_ino + 2**63) % 2**64 - 2**63
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode
