"""What is known of images and clips without reading them again: hashes, and what headers say.

A file is known by its stamp (size, times, inode), so that an unchanged dataset is not read again.
The memory lies in the cache's folder and holds no paths, only their hashes, because caches are
passed on to other people.

A scan asks for headers and for what clips hold, encoding for hashes.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

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
_FIELDS = [
    ("name", "u1", (32,)),
    ("stamp", "<i8", (4,)),
    ("digest", "u1", (32,)),
    ("width", "<u4"),
    ("height", "<u4"),
    ("flags", "<u4"),
]
_CLIP_FIELDS = [
    *_FIELDS[:2],
    ("width", "<u4"),
    ("height", "<u4"),
    ("duration", "<f8"),
    ("missing", "<f8"),
]
_HASHED, _HEADER, _ANIMATED, _ALPHA = 1, 2, 4, 8

_Stamp = tuple[int, int, int, int]
_Known = tuple[_Stamp, bytes, ImageInfo | None]


class FileMemory:
    """Hashes and headers of image files, remembered in the cache folder.

    Args:
        folder: The cache folder; None remembers only as long as this lives.
        trust: Whether what is remembered is believed; otherwise every file is read.
    """

    def __init__(self, folder: Path | None, trust: bool = True) -> None:
        self._table = RecordTable(folder / "index", "images", _FIELDS, 1) if folder else None
        self._trust = trust
        self._rows = self._table.read() if self._table else np.zeros(0, np.dtype(_FIELDS))
        names = self._rows["name"].tobytes()
        self._place = {names[at : at + 32]: at // 32 for at in range(0, len(names), 32)}
        # Lists: a row of a table takes longer to read than the rest of a look-up.
        self._stamps: list[list[int]] = self._rows["stamp"].tolist()
        self._digests = self._rows["digest"]
        self._flags: list[int] = self._rows["flags"].tolist()
        self._sizes = list(
            zip(self._rows["width"].tolist(), self._rows["height"].tolist(), strict=True)
        )
        self._new: dict[bytes, _Known] = {}
        self._clip_table = (
            RecordTable(folder / "index", "clips", _CLIP_FIELDS, 1) if folder else None
        )
        self._clips: dict[bytes, tuple[_Stamp, ClipFacts]] | None = None
        self._new_clips: dict[bytes, tuple[_Stamp, ClipFacts]] = {}
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
        known = self._known(name, stamp)
        if known is not None and known[1] and self._trust:
            # The hash is asked for next: neither its status nor its name is made again then.
            self._seen[os.fspath(path)] = (stamp, known[1].hex())
        if known is not None and known[2] is not None and self._trust:
            return known[2]
        found = header_info(path)
        self._keep(name, (stamp, known[1] if known else b"", found))
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
        before, known = self._new_clips.get(name) or self._old_clips().get(name, (None, None))
        if known is not None and before == stamp:
            return known
        found = clip_facts(path, rate)
        if _is_settled(stamp):
            self._new_clips[name] = stamp, found
        return found

    def _old_clips(self) -> dict[bytes, tuple[_Stamp, ClipFacts]]:
        if self._clips is None:
            rows = self._clip_table.read().tolist() if self._clip_table and self._trust else []
            self._clips = {
                bytes(name): (tuple(stamp), ClipFacts(*facts)) for name, stamp, *facts, _, _ in rows
            }
        return self._clips

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
            known = self._known(name, stamp)
            if is_frame_folder(path):
                every = "".join(map(self.of, frame_files(path)))
                digest = hashlib.sha256(every.encode()).hexdigest()
            elif self._trust and known is not None and known[1]:
                digest = known[1].hex()
            else:
                digest = hash_file(path)
                self._keep(name, (stamp, bytes.fromhex(digest), known[2] if known else None))
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
        if self._new_clips and self._clip_table is not None:
            rows = self._clip_table.rows(len(self._new_clips))
            rows["name"] = _bytes_array(list(self._new_clips))
            rows["stamp"] = [stamp for stamp, _ in self._new_clips.values()]
            for name, *_ in _CLIP_FIELDS[2:]:
                rows[name] = [getattr(facts, name) for _, facts in self._new_clips.values()]
            self._clip_table.add(rows)
            self._clip_table.close()
        if not self._new or self._table is None:
            return
        rows = self._table.rows(len(self._new))
        rows["name"] = _bytes_array(list(self._new))
        rows["stamp"] = [known[0] for known in self._new.values()]
        rows["digest"] = _bytes_array([known[1] or bytes(32) for known in self._new.values()])
        facts = [known[2] for known in self._new.values()]
        rows["width"] = [each.width if each else 0 for each in facts]
        rows["height"] = [each.height if each else 0 for each in facts]
        rows["flags"] = [_flags(known) for known in self._new.values()]
        self._table.add(rows)
        self._table.close()

    def _known(self, name: bytes, stamp: _Stamp) -> _Known | None:
        known = self._new.get(name)
        if known is None:
            place = self._place.get(name)
            if place is None:
                return None
            if tuple(self._stamps[place]) != stamp:
                return None
            flags = self._flags[place]
            digest = self._digests[place].tobytes() if flags & _HASHED else b""
            facts = None
            if flags & _HEADER:
                facts = ImageInfo(
                    *self._sizes[place], bool(flags & _ANIMATED), bool(flags & _ALPHA)
                )
            return stamp, digest, facts
        return known if known[0] == stamp else None

    def _keep(self, name: bytes, known: _Known) -> None:
        if _is_settled(known[0]):
            self._new[name] = known


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


def _is_settled(stamp: _Stamp) -> bool:
    return time.time_ns() - max(stamp[1], stamp[2]) > _TICK_NS


def _flags(known: _Known) -> int:
    facts = known[2]
    flags = (_HASHED if known[1] else 0) | (_HEADER if facts else 0)
    if facts:
        flags |= (_ANIMATED if facts.animated else 0) | (_ALPHA if facts.alpha else 0)
    return flags


def _bytes_array(values: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), 32)
