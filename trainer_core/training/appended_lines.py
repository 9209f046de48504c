"""A file that grows by whole lines; what finds no room is kept, and written later in its order."""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

from ..errors import StorageError
from ..filesystem.storage import storage_error

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
        try:
            # Without a buffer: what a full disk takes of a line is known, and taken back.
            self._file = path.open("ab", buffering=0)
            self._size = self._file.tell()
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
                with contextlib.suppress(OSError):
                    self._file.truncate(self._size)
                raise storage_error(self._path, error) from error
            self._pending.popleft()

    def close(self) -> None:
        """Try once more to write what is kept, and close; raises nothing."""
        if not self._file.closed:
            # Whoever waits for these lines was told before.
            with contextlib.suppress(StorageError):
                self.write_pending()
            self._file.close()

    def _write(self, line: bytes) -> None:
        # What an earlier line left, where even taking back was refused, goes first.
        self._file.truncate(self._size)
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(line)
