"""Keep a cache within a size: what was unused for longest goes first, never what is needed.

Who is about to use files says so before looking whether they are there: a list of their keys, and
beside it a lock that names the process. A list that was used again is only touched, so its time is
when its files were used last. Who collects holds a lock for as long, and who has just said what is
needed waits for that to end: either the collector saw the list, or the user sees what is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import StorageError
from ...filesystem.record_table import key_bytes
from ...filesystem.storage import Lock, acquire, atomic_write, lock_holder, unlink
from ...filesystem.text_files import LARGEST_LIST, require_regular
from .file_index import scan_files
from .work_claims import is_old

KINDS = ("latents", "masks", "preserved", "prompts", "slider", "text")
"""Folders of a cache from which files are removed."""

USES = "uses"
_LIST, _LOCK = ".use", ".lock"
_COLLECTING = "collect.lock"
_MANIFEST = "*.cache.json"
_KEYS = re.compile(rb"[0-9a-f]{64,}")
_WAIT_SECONDS, _PATIENCE_SECONDS = 0.05, 600.0
_FOREIGN_SECONDS = 10.0
GIGABYTE = 10**9
_NUMBERS = itertools.count()
"""Tells the marks of one process apart."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed of a cache, or would be.

    Attributes:
        removed: How many files.
        kept: Bytes of the files that stay.
        needed: Bytes of those that stay because something needs them.
        dry: Whether nothing was really removed.
    """

    removed: int
    freed: int
    kept: int
    needed: int
    limit: int
    dry: bool

    def __str__(self) -> str:
        limit = f"cache.max_gb={self.limit / GIGABYTE:g}"
        if not self.removed and self.kept <= self.limit:
            return f"cache: nothing has to be removed, its {_size(self.kept)} are within {limit}"
        would = "would be removed" if self.dry else "were removed"
        text = (
            f"cache: {self.removed} files that were unused for longest {would}, "
            f"{_size(self.freed)}; {_size(self.kept)} stay"
        )
        if self.kept > self.limit:
            text += (
                f", more than {limit}, because this run, a list of a finished cache or another run "
                "at work needs them"
            )
        return text


def _size(count: int) -> str:
    return f"{count / GIGABYTE:.2f} GB" if count >= GIGABYTE else f"{count / 10**6:.1f} MB"


class UseMark:
    """Says that this process needs some files, until `release` or the end of the process.

    Args:
        keys: `[N, 32]`, what is needed.
    """

    def __init__(self, folder: Path, keys: NDArray[np.uint8]) -> None:
        self._lock: Lock | None = None
        content = np.unique(key_bytes(keys)).tobytes() if len(keys) else b""
        name = hashlib.sha256(content).hexdigest()[:32]
        uses = folder / USES
        # A cache that cannot be written is not collected by anybody here either.
        with contextlib.suppress(OSError, StorageError):
            path = uses / f"{name}{_LIST}"
            uses.mkdir(parents=True, exist_ok=True)
            self._lock = acquire(uses / f"{name}-{os.getpid()}-{next(_NUMBERS)}{_LOCK}")
            if path.exists() and path.stat().st_size == len(content):
                os.utime(path)
            else:
                atomic_write(path, lambda target: target.write_bytes(content))
            _await_collector(uses / _COLLECTING)

    def release(self) -> None:
        """Need them no more."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __del__(self) -> None:
        """Nothing needs them when nothing holds the mark."""
        with contextlib.suppress(Exception):
            self.release()


def _await_collector(lock: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (owner := lock_holder(lock)) is not None and time.monotonic() < deadline:
        if not owner.is_here and is_old(lock, _FOREIGN_SECONDS):
            return  # it came with a copied folder, or its machine was switched off
        time.sleep(_WAIT_SECONDS)


def remove_unused(
    folder: Path, limit: int, needed: NDArray[np.uint8], *, dry: bool = False
) -> Collected | None:
    """Remove what was unused for longest until a cache fits; None when another process does now.

    Args:
        needed: `[N, 32]`: keys that stay in any case, beside those that a manifest in the folder
            names and those that another process at work needs.
        dry: Whether to say only what would be removed.

    Raises:
        StorageError: When a file cannot be removed.
    """
    uses = folder / USES
    try:
        uses.mkdir(parents=True, exist_ok=True)
        lock = acquire(uses / _COLLECTING)
    except OSError as error:
        raise _cannot(folder, error) from error
    if lock is None:
        return None
    with lock:
        marks = list(_marks(uses))
        protected = [key_bytes(needed)] if len(needed) else []
        protected += [mark.keys for mark in marks if mark.held]
        protected += [_named(path) for path in folder.glob(_MANIFEST)]
        files = _files(folder)
        used = files.changed.copy()
        for mark in marks:
            used[np.isin(files.keys, mark.keys)] = np.maximum(
                used[np.isin(files.keys, mark.keys)], mark.used
            )
        protected.append(np.zeros(0, "S32"))
        keep = np.isin(files.keys, np.concatenate(protected))
        result = _remove(files, used, keep, limit, dry=dry)
        if not dry:
            _forget(uses, marks, files)
    return result


@dataclass(frozen=True, slots=True)
class _Mark:
    """A list of used files, when it was used, and whether a process that lives holds it."""

    path: Path
    keys: NDArray[Any]
    used: int
    held: bool


@dataclass(slots=True)
class _Files:
    """All files of a cache, in columns."""

    folders: list[Path]
    place: NDArray[np.int64]
    keys: NDArray[Any]
    sizes: NDArray[np.int64]
    changed: NDArray[np.int64]
    gone: NDArray[np.bool_]


def _files(folder: Path) -> _Files:
    # Other folders are not the cache's, even where files in them are called so: people keep
    # models by such names, too.
    folders = [path for name in KINDS if (path := folder / name).is_dir() and not path.is_symlink()]
    rows = [scan_files(path) for path in folders]
    place = np.repeat(np.arange(len(folders)), [len(each) for each in rows])
    every = np.concatenate(rows) if rows else scan_files(folder / "none")
    return _Files(
        *(folders, place, key_bytes(every["key"]), every["size"], every["changed"].copy()),
        np.zeros(len(every), bool),
    )


def _remove(
    files: _Files, used: NDArray[np.int64], keep: NDArray[np.bool_], limit: int, *, dry: bool
) -> Collected:
    total, freed = int(files.sizes.sum()), 0
    for at in np.argsort(used, kind="stable").tolist():
        if total - freed <= limit:
            break
        if keep[at]:
            continue
        name = bytes(files.keys[at]).ljust(32, b"\0").hex()
        path = files.folders[files.place[at]] / f"{name}.safetensors"
        if not dry:
            try:
                unlink(path)
            except OSError as error:
                raise _cannot(path, error) from error
        files.gone[at] = True
        freed += int(files.sizes[at])
    needed = int(files.sizes[keep].sum())
    return Collected(
        int(files.gone.sum()), freed, total - freed, needed=needed, limit=limit, dry=dry
    )


def _marks(uses: Path) -> Iterator[_Mark]:
    held: set[str] = set()
    for lock in uses.glob(f"*{_LOCK}"):
        if lock.name == _COLLECTING:
            continue
        if lock_holder(lock) is not None:
            held.add(lock.name.split("-")[0])
        else:
            with contextlib.suppress(OSError):
                lock.unlink(missing_ok=True)
    for path in uses.glob(f"*{_LIST}"):
        with contextlib.suppress(OSError, ValueError):
            if require_regular(path) > LARGEST_LIST:
                continue
            used = path.stat().st_mtime_ns
            # Of a list that is not whole numpy leaves the torn end out.
            keys = np.fromfile(path, "S32")
            yield _Mark(path, keys, used, path.name.removesuffix(_LIST) in held)


def _named(path: Path) -> NDArray[Any]:
    """The keys that a list of a finished cache names, whatever its version; also of a damaged one.

    Every run of digits in it that may be keys is taken for keys.
    """
    try:
        if require_regular(path) > LARGEST_LIST:
            raise ValueError(f"it has more than {LARGEST_LIST} bytes")
        with path.open("rb") as file:
            content = file.read()
    except (OSError, ValueError) as error:
        raise _cannot(path, error) from error
    runs = (found.group() for found in _KEYS.finditer(content))
    text = b"".join(run[: len(run) // 64 * 64] for run in runs)
    return np.frombuffer(bytes.fromhex(text.decode()), "S32")


def _forget(uses: Path, marks: Iterable[_Mark], files: _Files) -> None:
    """Remove lists of which nothing is left."""
    left = files.keys[~files.gone]
    for mark in marks:
        if not mark.held and not np.isin(mark.keys, left).any():
            with contextlib.suppress(OSError):
                mark.path.unlink(missing_ok=True)


def _cannot(path: Path, error: OSError | ValueError) -> StorageError:
    reason = getattr(error, "strerror", None) or error
    return StorageError(
        f"cache.max_gb: {path} cannot be removed or read ({reason})",
        "a cache folder whose files may be removed, and whose lists can be read",
        "Give write access to the cache folder, remove that file, or leave cache.max_gb out.",
    )
