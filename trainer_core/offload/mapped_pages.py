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

from torch import Tensor

Pages = tuple[int, int]
"""First address, and the one behind the last, of memory that a file is mapped to."""

_MAPS = Path("/proc/self/maps")
_ENDING = ".safetensors"
_DONTNEED = 4
"""``MADV_DONTNEED`` of Linux: read again from the file when it is asked for again."""


def mapped_pages(tensors: Sequence[Tensor]) -> tuple[Pages, ...] | None:
    """The memory of those tensors that lie in mapped safetensors files, to which nobody writes.

    Args:
        tensors: On the CPU.

    Returns:
        None where the system does not tell: elsewhere than on Linux.
    """
    if not sys.platform.startswith("linux") or not _MAPS.exists():
        return None
    files: list[Pages] = []
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.endswith(_ENDING):
            first, last = line.split(maxsplit=1)[0].split("-")
            files.append((int(first, 16), int(last, 16)))
    found = []
    for tensor in tensors:
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        if any(first <= start and stop <= last for first, last in files):
            found.append((start, stop))
    return tuple(found)


def forget_pages(pages: Sequence[Pages]) -> None:
    """Give memory back to the system; the next reader gets the same bytes from the file.

    Args:
        pages: As `mapped_pages` gives them. Neighbours on their first and last pages go with them.
    """
    if not pages:
        return
    madvise = ctypes.CDLL(None).madvise
    for start, stop in pages:
        first = start - start % mmap.PAGESIZE
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - first), _DONTNEED)
