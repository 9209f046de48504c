"""What an image file contains, as a hash of its bytes.

Hashes are remembered by the file's stamp (size, times, inode), so that an unchanged dataset is not
read again. The memory holds no paths, only their hashes: caches are passed on to other people.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from ..errors import DatasetError
from ..filesystem.storage import write_text
from ..filesystem.text_files import LARGEST_LIST, read_object

_FILE = "picture_hashes.json"
_CHUNK = 1 << 20
# A file changed twice within a file system's tick keeps its stamp; two seconds is FAT's tick.
_TICK_NS = 2_000_000_000

_Stamp = tuple[int, int, int, int]


class ContentHashes:
    """Hashes of image files, remembered in the cache folder.

    Args:
        folder: The cache folder.
        trust: Whether remembered hashes are believed; otherwise every file is read.
    """

    def __init__(self, folder: Path, trust: bool = True) -> None:
        self._path = folder / _FILE
        self._known = _read_memory(self._path)
        self._trust = trust
        self._seen: dict[Path, tuple[_Stamp, str]] = {}
        self._changed = False

    def of(self, path: Path) -> str:
        """Hash a file's bytes.

        Args:
            path: An image.

        Returns:
            SHA-256 as 64 hexadecimal digits.

        Raises:
            DatasetError: When the file cannot be read.
        """
        if path in self._seen:
            return self._seen[path][1]
        try:
            stamp = _stamp(path)
            name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
            known = self._known.get(name)
            if self._trust and known is not None and known[:-1] == list(stamp):
                digest = str(known[-1])
            else:
                digest = hash_file(path)
                self._remember(name, stamp, digest)
        except OSError as error:
            raise DatasetError(
                f"{path} cannot be read ({error.strerror})",
                "a readable picture",
                "Give read access to the file, or remove it from the dataset.",
            ) from error
        self._seen[path] = (stamp, digest)
        return digest

    def check_unchanged(self, path: Path) -> None:
        """Make sure that a file is still the one that was hashed.

        Raises:
            DatasetError: When it was changed or removed in the meantime.
        """
        try:
            same = _stamp(path) == self._seen[path][0]
        except OSError:
            same = False
        if not same:
            raise DatasetError(
                f"{path} changed while the dataset was being encoded",
                "pictures that stay as they are until encoding is done",
                "Start again when nothing writes to the dataset folder.",
            )

    def save(self) -> None:
        """Write what is known to the cache folder."""
        if self._changed:
            write_text(self._path, json.dumps(self._known))
            self._changed = False

    def _remember(self, name: str, stamp: _Stamp, digest: str) -> None:
        newest = max(stamp[1], stamp[2])
        if time.time_ns() - newest > _TICK_NS:
            self._known[name] = [*stamp, digest]
            self._changed = True


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, read in parts."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read_memory(path: Path) -> dict[str, list[int | str]]:
    def refuse(reason: str) -> DatasetError:
        return DatasetError(f"{path}: {reason}", "the memory of hashes", "Remove it.")

    try:
        value = read_object(path, refuse, LARGEST_LIST)
    except DatasetError:
        return {}  # it is written anew
    return {name: row for name, row in value.items() if _is_row(row)}


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 5
        and all(isinstance(number, int) for number in row[:4])
        and isinstance(row[4], str)
    )
