"""Gives memory of the process that nobody uses back to the system."""

from __future__ import annotations

import ctypes
import sys


def return_free_memory() -> None:
    """Return the holes between live tensors, where the system's allocator would keep them.

    That of glibc puts an aligned block of the size of a hole behind all others, as the hole lacks
    the bytes to align it. A base that is packed layer by layer was measured to leave holes of 1.7
    times its own size. Nothing is done elsewhere than on Linux with glibc.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(ctypes.c_size_t(0))
