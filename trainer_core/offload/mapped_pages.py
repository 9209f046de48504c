"""Which tensors lie in mapped files, and how the memory that they were read into is given back.

What was read of a mapped file counts as this process's memory until the system is short of it. A
base that is read in each step would count as a whole.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ..errors import BaseModelError
from ..filesystem.text_files import read_lines

_MAPS = Path("/proc/self/maps")
_DONTNEED = 4
"""``MADV_DONTNEED`` of Linux: read again from the file when it is asked for again."""


class _Mark(NamedTuple):
    """What says whether a file is still the one that was mapped, and has the same bytes."""

    number: int
    size: int
    changed: int

    @classmethod
    def of(cls, path: str) -> _Mark | None:
        try:
            found = Path(path).stat()
        except OSError:
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class MappedPages(NamedTuple):
    """Memory that files are mapped to, and to which nobody writes.

    Attributes:
        ranges: First address, and the one behind the last, of each tensor.
        files: The files, as they were.
    """

    ranges: tuple[tuple[int, int], ...]
    files: dict[str, _Mark]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(stop - start for start, stop in self.ranges)

    def require_unchanged(self) -> None:
        """See whether the files still have the bytes that were mapped.

        Raises:
            BaseModelError: When somebody has written to one. Another file in its place, or none,
                does no harm: the mapping keeps what it was made of.
        """
        for path, before in self.files.items():
            now = _Mark.of(path)
            if now is not None and now.number == before.number and now != before:
                raise BaseModelError(
                    f"{path} was written to while blocks are read from it (memory.master is file)",
                    "a base's file that stays as it is until the run has ended",
                    "Put the file back as it was, then go on with resume=latest.",
                )

    def forget(self) -> None:
        """Give the memory back to the system; the next reader gets the same bytes from the file."""
        madvise = ctypes.CDLL(None).madvise
        for start, stop in self.ranges:
            first = start - start % mmap.PAGESIZE
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - first), _DONTNEED)


def mapped_pages(tensors: Sequence[Tensor]) -> MappedPages | None:
    """The memory of those tensors that lie in mapped files, whatever these are called.

    The system has the names behind all links, which in a hub's cache are digests without an ending.

    Args:
        tensors: On the CPU.

    Returns:
        None where the system does not tell: elsewhere than on Linux.
    """
    if not sys.platform.startswith("linux") or not _MAPS.exists():
        return None
    mappings: list[tuple[int, int, str]] = []
    for line in read_lines(_MAPS):
        place, *_, path = line.split(maxsplit=5)
        if path.startswith("/"):
            first, last = place.split("-")
            mappings.append((int(first, 16), int(last, 16), path))
    ranges, paths = [], set()
    for tensor in tensors:
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        inside = [path for first, last, path in mappings if first <= start and stop <= last]
        # What is called after a device, or after no file, has its bytes nowhere else.
        if inside and tensor.nbytes and Path(inside[0]).is_file():
            ranges.append((start, stop))
            paths.add(inside[0])
    marks = {path: _Mark.of(path) for path in paths}
    return MappedPages(tuple(ranges), {path: mark for path, mark in marks.items() if mark})
