"""Lock files: at most one process, and one thread of it, holds a lock at any moment.

A lock is a file that names its owner. It appears under its name whole and only if nothing has that
name, which the file system decides; so of all that try at once exactly one gets it. The lock of a
process that has died is replaced by whoever holds a second lock beside it, and only if it is still
the one that was found dead: of all that find it, again exactly one gets it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from .owners import Owner, new_owner
from .storage import claim, move, unlink, write_and_flush
from .temporary import temporary_beside
from .text_files import parse_json, require_regular

_TAKEOVER = ".takeover"
_PAUSE_SECONDS = 0.005
_PATIENCE_SECONDS = 10.0
_LARGEST = 1 << 16


class Lock:
    """A lock that this process holds; leaving it gives it up.

    Args:
        path: The lock's file.
        owner: This process, under the token of this lock.
    """

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self.owner = owner

    def release(self) -> None:
        """Give it up. A file that cannot be removed binds nobody of this process."""
        try:
            # Somebody may have removed it by hand, and another have a lock there now.
            if _owner(_content(self.path) or b"") == self.owner:
                unlink(self.path)
        except OSError:
            pass
        finally:
            # Last, or a thread could take over what is about to be removed.
            self.owner.drop()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def acquire(path: Path) -> Lock | None:
    """Take a lock.

    Args:
        path: The lock's file, in a folder that exists.

    Returns:
        The lock, or None where somebody else who lives holds it.

    Raises:
        OSError: When it cannot be written.
    """
    owner = new_owner()
    taken = False
    try:
        taken = _take(path, owner)
    finally:
        if not taken:
            owner.drop()
    return Lock(path, owner) if taken else None


def holder(path: Path) -> Owner | None:
    """Who holds a lock; None where nobody does who lives.

    Args:
        path: The lock's file.
    """
    content = _content(path)
    if content is None or not _binds(path, content):
        return None
    return _owner(content) or Owner("unknown", 0, None, None)


def record(owner: Owner) -> dict[str, Any]:
    """An owner as JSON values, under the names that lock files and ``run.json`` have for it."""
    return {"host": owner.host, "pid": owner.pid, "process_started": owner.started}


def _take(path: Path, owner: Owner) -> bool:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with temporary_beside(path) as draft:
            write_and_flush(draft, json.dumps({**record(owner), "token": owner.token}))
            try:
                claim(draft, path)
            except FileExistsError:
                found = _content(path)
            else:
                return True
            if found is not None and _binds(path, found):
                return False
            if found is not None and _take_over(path, found, draft):
                return True
        # It was given up, or somebody takes it over, this very moment.
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)


def _take_over(path: Path, dead: bytes, draft: Path) -> bool:
    """Replace a dead lock, if it is still there and nobody else is about to."""
    # Whoever dies here leaves a lock that is taken over in the same way.
    guard = acquire(path.with_name(path.name + _TAKEOVER))
    if guard is None:
        return False
    with guard:
        if _content(path) != dead:
            return False
        move(draft, path, replace=True)
        return True


def _binds(path: Path, content: bytes) -> bool:
    owner = _owner(content)
    if owner is not None:
        return owner.is_alive()
    # On a disk without links the name is there a moment before the content is.
    try:
        return abs(time.time() - path.stat().st_mtime) < _PATIENCE_SECONDS
    except OSError:
        return False


def _content(path: Path) -> bytes | None:
    """What a lock's file holds; None without a file."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return b""


def _owner(content: bytes) -> Owner | None:
    try:
        lock = parse_json(content)
        started = lock["process_started"]
        return Owner(
            str(lock["host"]),
            int(lock["pid"]),
            None if started is None else float(started),
            None if lock.get("token") is None else str(lock["token"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
