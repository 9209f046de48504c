"""Where quick tests write: into memory where there is plenty, since lasting files are waited for.

A run waits for the disk (``fsync``) at every file that has to outlast a crash: in the tests of
resuming and of folders an eighth of the time.
"""

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_NEEDED = 16 * 2**30
"""Bytes that have to be free there and in RAM: half for the files at most, half for processes."""


def temporary_folder() -> str:
    """A folder in memory, or the system's own for temporary files."""
    free = _free_in_memory() if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else 0
    return str(_MEMORY) if free >= _NEEDED else tempfile.gettempdir()


def _free_in_memory() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next((int(line.split()[1]) for line in lines if "MemAvailable" in line), 0)
    return min(1024 * available, shutil.disk_usage(_MEMORY).free)
