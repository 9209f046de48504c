"""What folders hold, so that it can be shown that nothing in them was changed."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

Snapshot = dict[str, tuple[int, int, int]]
"""Path to mode, size and time of change, of every file, folder and link."""

_NOT_OURS = ".git"
"""Git writes there when somebody asks for the status."""


def snapshot(folders: Iterable[Path]) -> Snapshot:
    """Look at everything below some folders; links are looked at, not followed."""
    found: Snapshot = {}
    for path in {path for folder in folders for path in _below(str(folder))}:
        state = os.lstat(path)
        found[path] = (state.st_mode, state.st_size, state.st_mtime_ns)
    return found


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Every path that came, went or is not as it was."""
    paths = before.keys() | after.keys()
    return sorted(path for path in paths if before.get(path) != after.get(path))


def _below(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == _NOT_OURS:
                continue
            yield entry.path
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path)
