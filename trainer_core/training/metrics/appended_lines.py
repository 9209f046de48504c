"""A file that grows by whole lines; what finds no room is kept, and written later in its order."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ...errors import StorageError
from ...filesystem.storage import storage_error

MOST = 100_000
"""Lines that are kept in memory, some 30 MB; of more the oldest are lost."""


class AppendedLines:
    """Appends lines to a file, each whole or not at all.

    Args:
        path: The file, which ends with a line or is absent.

    Raises:
        StorageError: When it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: deque[bytes] = deque(maxlen=MOST)
        self._ended = False
        try:
            self._open()
        except OSError as error:
            raise storage_error(path, error) from error

    @property
    def pending(self) -> int:
        """How many lines are not on the disk."""
        return len(self._pending)

    def append(self, line: str) -> None:
        """Write a line behind those that could not be written before.

        Args:
            line: Without its end.

        Raises:
            StorageError: When there is no room; the line is kept.
        """
        self._pending.append(f"{line}\n".encode())
        self.write_pending()

    def write_pending(self) -> None:
        """Write what is kept.

        Raises:
            StorageError: When there is no room for all of it; the rest is kept.
        """
        while self._pending:
            try:
                self._write(self._pending[0])
            except OSError as error:
                if not self._file.closed:
                    with contextlib.suppress(OSError):
                        self._file.truncate(self._size)
                raise storage_error(self._path, error) from error
            self._pending.popleft()

    def rewrite(self, write: Callable[[], object]) -> None:
        """Have somebody replace the file, which not every system does while it is open.

        Args:
            write: Puts another file in its place, or raises and leaves it as it is. Lines that are
                not on the disk come behind it.
        """
        self._file.close()
        try:
            write()
        finally:
            # Else the next line tries it again.
            with contextlib.suppress(OSError):
                self._open()

    def close(self) -> None:
        """Try once more to write what is kept, and close; raises nothing."""
        if not self._ended:
            # Whoever waits for these lines was told before.
            with contextlib.suppress(StorageError):
                self.write_pending()
            self._file.close()
            self._ended = True

    def _open(self) -> None:
        # Without a buffer: what a full disk takes of a line is known, and taken back.
        self._file = self._path.open("ab", buffering=0)
        self._size = self._file.tell()

    def _write(self, line: bytes) -> None:
        if self._file.closed:
            self._open()
        # What an earlier line left, where even taking back was refused, goes first.
        self._file.truncate(self._size)
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(line)
