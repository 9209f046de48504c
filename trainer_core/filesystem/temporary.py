"""Names of what is being written, and what becomes of it when its writer is killed.

A temporary file or folder lies beside its target, so that it can be renamed, and its name tells
which process writes it. What no living process owns is removed by the next command that writes
there, which says so. This is the one place that knows such names.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .owners import Owner, mark, new_owner

PREFIX = ".writing-"
SUFFIX = ".part"
"""Ending of what is not whole, so that no program lists what a crash leaves by its own."""

_ASIDE = ".replaced-"
_OWNED = re.compile(
    r"(?P<kind>\.writing-|\.replaced-)(?P<host>[0-9a-f]{8})-(?P<pid>\d{1,10})-(?P<started>\d{1,12})"
    r"-(?P<token>[0-9a-f]{32})-(?P<name>.*)",
    re.DOTALL,
)
_FORMER = re.compile(
    r"\.(?:writing|removing|new)-[0-9a-f]{32}(?:-.*)?|\.adapter-[0-9a-f]{32}\.safetensors",
    re.DOTALL,
)
"""Names that earlier versions gave, which tell no owner."""

_DAY = 86400.0
_QUIET_SECONDS = 3600.0
_FORMER_AGE = _DAY
_ELSEWHERE_AGE = 7 * _DAY
_NAME_BYTES = 100  # of the target's name; a file system takes 255
_NAMED = 5


@contextlib.contextmanager
def temporary_beside(target: Path, ending: str = SUFFIX) -> Iterator[Path]:
    """A name for a file or folder that is to become a target, for as long as a block.

    Args:
        target: The final name.
        ending: Ending of the temporary one.

    Yields:
        The path, at which nothing is. What is there when the block is left is removed.
    """
    with _owned(PREFIX, target, ending) as path:
        try:
            yield path
        finally:
            remove(path)


@contextlib.contextmanager
def set_aside(target: Path) -> Iterator[Path]:
    """A name for what a target is replaced by, for as long as a block.

    A writer that is killed in the block leaves it under that name: `remove_leftovers` gives it its
    own name back, unless that is taken by then.

    Args:
        target: The name that it has.

    Yields:
        The path, at which nothing is. What is there when the block is left is removed, unless
        nothing has taken the target's place.
    """
    with _owned(_ASIDE, target, "") as path:
        try:
            yield path
        finally:
            if os.path.lexists(target):
                remove(path)
            elif os.path.lexists(path):
                path.rename(target)


@contextlib.contextmanager
def _owned(kind: str, target: Path, ending: str) -> Iterator[Path]:
    owner = new_owner()
    started = int(owner.started or 0)
    name = target.name if kind == _ASIDE else _short(target.name)
    name = f"{kind}{mark(owner.host)}-{owner.pid}-{started}-{owner.token}-{name}{ending}"
    try:
        yield target.parent / name
    finally:
        owner.drop()


def _short(name: str) -> str:
    return os.fsencode(name)[:_NAME_BYTES].decode("utf-8", "ignore")


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def remove_leftovers(*folders: Path) -> list[str]:
    """Remove what killed commands left in some folders; not in the folders that lie in those.

    What a living process writes is not touched. Of another machine, whose processes cannot be
    seen, only what has not changed for a week is removed, and of earlier versions, whose names told
    no owner, what has not changed for a day.

    Args:
        folders: Where something is about to be written; some may be absent.

    Returns:
        What was done, in sentences for the user; none where nothing was found.
    """
    return [sentence for folder in dict.fromkeys(folders) for sentence in _sweep(folder)]


@dataclass(frozen=True, slots=True)
class _Leftover:
    """What the name of a temporary file or folder tells.

    Attributes:
        path: Where it is.
        owner: Who wrote it; None for an earlier version.
        target: The name that it gets back, if it was replaced.
    """

    path: Path
    owner: Owner | None
    target: Path | None = None


def _sweep(folder: Path) -> list[str]:
    removed: list[tuple[str, int]] = []
    sentences: list[str] = []
    for left in _leftovers(folder):
        size, changed = _extent(left.path)
        age = time.time() - changed
        if not _is_abandoned(left.owner, age):
            if left.owner is not None and not left.owner.is_here and age > _QUIET_SECONDS:
                sentences.append(
                    f"{left.path} ({_shown(size)}) was left alone: it was begun on another "
                    "machine. Remove it if nothing writes it any more."
                )
        elif left.target is not None and not os.path.lexists(left.target):
            with contextlib.suppress(OSError):
                left.path.rename(left.target)
                sentences.append(
                    f"Put {left.target} back, which a command was replacing when it was killed."
                )
        else:
            remove(left.path)
            if not os.path.lexists(left.path):
                removed.append((left.path.name, size))
    return sentences + ([_told(folder, removed)] if removed else [])


def _leftovers(folder: Path) -> list[_Leftover]:
    try:
        names = [name for name in os.listdir(folder) if name.startswith(".")]  # noqa: PTH208
    except OSError:
        return []
    found = (_leftover(folder / name) for name in sorted(names))
    return [each for each in found if each is not None]


def _leftover(path: Path) -> _Leftover | None:
    match = _OWNED.fullmatch(path.name)
    if match is None:
        return _Leftover(path, None) if _FORMER.fullmatch(path.name) else None
    started = float(match["started"]) or None
    owner = Owner(match["host"], int(match["pid"]), started, match["token"])
    target = path.with_name(match["name"]) if match["kind"] == _ASIDE else None
    return _Leftover(path, owner, target)


def _is_abandoned(owner: Owner | None, age: float) -> bool:
    if owner is None:
        return age > _FORMER_AGE
    if not owner.is_here:
        return age > _ELSEWHERE_AGE
    return not owner.is_alive()


def _extent(path: Path) -> tuple[int, float]:
    """Bytes of a file or folder, and when something in it changed last."""
    places = [path]
    if path.is_dir() and not path.is_symlink():
        places += [Path(at, name) for at, inner, files in os.walk(path) for name in inner + files]
    size, changed = 0, 0.0
    for place in places:
        with contextlib.suppress(OSError):
            status = place.lstat()
            size += status.st_size if not place.is_dir() else 0
            changed = max(changed, status.st_mtime)
    return size, changed


def _told(folder: Path, removed: list[tuple[str, int]]) -> str:
    names = ", ".join(name for name, _ in removed[:_NAMED])
    more = ", ..." if len(removed) > _NAMED else ""
    size = _shown(sum(size for _, size in removed))
    count = "an unfinished file or folder" if len(removed) == 1 else f"{len(removed)} unfinished"
    return f"Removed {count} ({size}) that killed commands left in {folder}: {names}{more}"


def _shown(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
