"""Tables of records of one size that several processes add to at once, read with numpy.

What they hold can always be found out again, so nothing waits for the disk, and what is damaged is
left out: a record whose checksum does not fit, a file of another version, the torn last record of a
process that was killed. Each process adds to a file of its own, whose head names its owner. Such
files are merged into one when there are several, by whoever holds the table's lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .storage import acquire, atomic_write, owner_text, parse_owner, unlink
from .temporary import Owner, new_owner

_MAGIC = b"ATTABLE1"
_HEAD = 256
_MERGE_FILES = 6
_MULTIPLIER = 0x9E3779B97F4A7C15
_LARGEST = 1 << 32  # bytes: 50 million records of a cache's index
_PART = 1 << 20  # records that are looked through at once

Rows = NDArray[Any]


class RecordTable:
    """A table in a folder.

    Args:
        folder: Where its files lie; made when the first record is added.
        name: Begins the names of its files.
        fields: Fields as numpy names them, each a number or an array of numbers; the first is the
            key, 32 bytes.
        version: Of what the fields mean; files of another one are not read.
    """

    def __init__(
        self, folder: Path, name: str, fields: list[tuple[Any, ...]], version: int
    ) -> None:
        self.folder, self.name, self.version = folder, name, version
        plain = np.dtype(fields)
        padding = -plain.itemsize % 8
        self.layout = np.dtype([*fields, ("_pad", "u1", (padding,)), ("_check", "<u8")])
        self._fields = plain
        self._key = str(fields[0][0])
        self._log: int | None = None
        self._owner: Owner | None = None
        self._own: Path | None = None

    def read(self) -> Rows:
        """All records that are whole; of a key that has several, the one added last."""
        parts = [rows for path in self._files() if (rows := self._records(path)) is not None]
        if not parts:
            return np.zeros(0, self.layout)
        return self._latest(np.concatenate(parts) if len(parts) > 1 else parts[0])

    def rows(self, count: int) -> Rows:
        """Empty records to be filled and added."""
        return np.zeros(count, self.layout)

    def add(self, rows: Rows) -> None:
        """Add records to this process's file. A folder that takes none gets none."""
        if not len(rows):
            return
        rows["_check"] = _checksums(rows)
        with contextlib.suppress(OSError):
            if self._log is None:
                self._begin()
            assert self._log is not None
            written = os.write(self._log, rows.tobytes())
            torn = written % self.layout.itemsize
            if torn:  # a full disk takes a part, behind which no record would be found
                os.ftruncate(self._log, os.fstat(self._log).st_size - torn)

    def close(self, merge: bool = True) -> None:
        """End this process's file; merge the files when there are several of them."""
        if self._log is not None:
            os.close(self._log)
            self._log = None
        if self._owner is not None:
            self._owner.drop()
            self._owner = None
        if merge:
            with contextlib.suppress(OSError):
                self._merge()

    def replace(self, rows: Rows) -> None:
        """Let these be all records: what others add at the same moment stays.

        Raises:
            StorageError: When they cannot be written.
        """
        self.close(merge=False)
        rows["_check"] = _checksums(rows)
        ended = list(self._ended())
        self._write_main(rows)
        for path in ended:
            unlink(path)

    @property
    def _main(self) -> Path:
        return self.folder / f"{self.name}.table"

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        owner = new_owner()
        path = self.folder / f"{self.name}-{owner.token}.log"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._log = os.open(path, flags, 0o666)
        except OSError:
            owner.drop()
            raise
        self._owner, self._own = owner, path
        os.write(self._log, self._head(owner_text(owner)))

    def _head(self, owner: str = "{}") -> bytes:
        numbers = np.array([self.version, self.layout.itemsize], "<u4").tobytes()
        head = _MAGIC + numbers + owner.encode()[: _HEAD - len(_MAGIC) - 8]
        return head.ljust(_HEAD, b" ")

    def _files(self) -> Iterator[Path]:
        """The merged file, then the others, in the order in which they were added to."""
        logs: list[tuple[int, str]] = []
        try:
            with os.scandir(self.folder) as entries:
                for each in entries:
                    if each.name.startswith(f"{self.name}-") and each.name.endswith(".log"):
                        # A pipe or a link of somebody else's is not a file of the table.
                        with contextlib.suppress(OSError):
                            if each.is_file(follow_symlinks=False):
                                logs.append((each.stat().st_mtime_ns, each.name))
        except OSError:
            return
        yield self._main
        yield from (self.folder / name for _, name in sorted(logs))

    def _records(self, path: Path) -> Rows | None:
        try:
            if path.stat().st_size > _LARGEST or not path.is_file():
                return None
            with path.open("rb") as file:
                if file.read(_HEAD)[: len(_MAGIC) + 8] != self._head()[: len(_MAGIC) + 8]:
                    return None
                parts = list(self._parts(file))
        except OSError:
            return None
        if len(parts) < 2:
            return parts[0] if parts else None
        return np.concatenate(parts)

    def _parts(self, file: BinaryIO) -> Iterator[Rows]:
        """The whole records behind a file's head; up to a long part without any."""
        while content := file.read(_PART * self.layout.itemsize):
            rows = np.frombuffer(content, self.layout, len(content) // self.layout.itemsize)
            whole = rows["_check"] == _checksums(rows) if len(rows) else np.zeros(0, bool)
            if not whole.any():
                return
            yield rows if whole.all() else rows[whole]

    def _latest(self, rows: Rows) -> Rows:
        keys = key_bytes(rows[self._key])[::-1]
        _, last = np.unique(keys, return_index=True)
        return rows[len(rows) - 1 - last]

    def _ended(self) -> Iterator[Path]:
        for path in self._files():
            if path == self._main:
                continue
            try:
                with path.open("rb") as file:
                    owner = parse_owner(file.read(_HEAD)[len(_MAGIC) + 8 :])
            except OSError:
                owner = None
            if path == self._own or owner is None or not owner.is_alive():
                yield path

    def _merge(self) -> None:
        ended = list(self._ended())
        size = sum(path.stat().st_size for path in ended)
        main = self._main.stat().st_size if self._main.exists() else 0
        # A large file is not written again for a few records.
        if not ended or (main and len(ended) < _MERGE_FILES and size * 8 < main):
            return
        lock = acquire(self.folder / f"{self.name}.lock")
        if lock is None:
            return
        with lock:
            parts = [self._records(path) for path in (self._main, *ended)]
            found = [part for part in parts if part is not None]
            if found:
                self._write_main(self._latest(np.concatenate(found)))
            for path in ended:
                unlink(path)

    def _write_main(self, rows: Rows) -> None:
        content = self._head() + rows.tobytes()
        atomic_write(self._main, lambda target: target.write_bytes(content))


def key_bytes(keys: Rows) -> Rows:
    """Keys `[N, 32]` of bytes as `[N]` values that can be sorted and compared."""
    return np.ascontiguousarray(keys).reshape(-1, 32).view("S32").reshape(-1)


def _checksums(rows: Rows) -> Rows:
    words = np.ascontiguousarray(rows).view("<u8").reshape(len(rows), -1)[:, :-1]
    total = np.full(len(rows), 0x2545F4914F6CDD1D, "<u8")
    for column in range(words.shape[1]):
        total = (total ^ words[:, column]) * np.uint64(_MULTIPLIER)
        total ^= total >> np.uint64(29)
    return total
