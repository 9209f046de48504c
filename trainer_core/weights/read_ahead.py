"""Reads files into the system's page cache while something else is computed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_PIECE = 4 << 20  # bytes that are read at once
_WAIT_SECONDS = 5.0  # for the last piece; a network drive may hang


@contextlib.contextmanager
def read_ahead(files: Sequence[Path], room: int) -> Iterator[threading.Thread | None]:
    """Read files in a thread until the block ends, so that they are read fast afterwards.

    Args:
        room: Bytes of RAM that they may fill. Files that take more are left alone: their ends would
            push out their beginnings.

    Yields:
        The thread; None where nothing is read.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_read, args=(files, ended), daemon=True)
    if not files or _size(files) > room:
        yield None
        return
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join(_WAIT_SECONDS)


def _size(files: Sequence[Path]) -> float:
    try:
        return sum(each.stat().st_size for each in files)
    except OSError:
        return float("inf")  # told where it is read in earnest


def _read(files: Sequence[Path], ended: threading.Event) -> None:
    piece = bytearray(_PIECE)
    with contextlib.suppress(OSError):
        for path in files:
            with path.open("rb", buffering=0) as file:
                while not ended.is_set() and file.readinto(piece):
                    pass
