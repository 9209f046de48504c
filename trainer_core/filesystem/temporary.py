"""Temporary names of what is being written, and the removal of what killed writers have left.

A temporary file or folder lies beside its target, so that it can be renamed, and its name tells
which process writes it. What no living process owns is removed by the next command that writes
there, which says so. This is the one place that knows such names.

A process is named by its machine, its number and its start, because numbers are used again. What
one process owns several times, such as the locks of two runs in ComfyUI, is told apart by tokens.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

PREFIX = ".writing-"
SUFFIX = ".part"
"""Ending of what is not whole, so that no program lists what a crash leaves by its own."""

# Windows refuses to move what somebody has open, be it a virus scanner that looks at a new file.
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0) if os.name == "nt" else ()
_IN_USE = 32  # what Windows calls a sharing violation
_ASIDE = ".replaced-"
_OWNED = re.compile(
    r"(?P<kind>\.writing-|\.replaced-)(?P<host>[0-9a-f]{8})-(?P<pid>\d{1,10})-(?P<started>\d{1,12})"
    r"-(?P<token>[0-9a-f]{16,32})-(?P<name>.*)",
    re.DOTALL,
)
_QUIET_SECONDS = 3600.0
_ELSEWHERE_AGE = 7 * 86400.0
# Paths of Windows end at 260 characters unless its user has allowed longer ones.
_TOKEN_DIGITS = 16
_NAME_BYTES = 24  # of the target's name
_NAMED = 5


@contextlib.contextmanager
def temporary_beside(target: Path, ending: str = SUFFIX) -> Iterator[Path]:
    """A name for a file or folder that is to become a target, for as long as a block.

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
                patiently(lambda: path.rename(target))


@contextlib.contextmanager
def _owned(kind: str, target: Path, ending: str) -> Iterator[Path]:
    owner = new_owner()
    started = int(owner.started or 0)
    name = target.name
    if kind != _ASIDE:
        name = os.fsencode(name)[:_NAME_BYTES].decode("utf-8", "ignore")
    name = f"{kind}{machine_mark(owner.host)}-{owner.pid}-{started}-{owner.token}-{name}{ending}"
    if kind != _ASIDE and any(each.startswith(PREFIX) for each in target.parent.parts):
        # The folder around it names the owner, and goes with all that is in it.
        name = f"{kind}{owner.token}{ending}"
    try:
        yield target.parent / name
    finally:
        owner.drop()


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        patiently(lambda: path.unlink(missing_ok=True))


def patiently(action: Callable[[], Result], *, reads: bool = False) -> Result:
    """Open, rename or remove something; on Windows wait a little for who has it open.

    Args:
        reads: Whether it is only read: then access that is denied is not waited for, because a
            dataset may have thousands of such files.

    Raises:
        OSError: When it cannot be done.
    """
    for pause in _PAUSES:
        try:
            return action()
        except PermissionError as error:
            if reads and getattr(error, "winerror", _IN_USE) != _IN_USE:
                raise
            time.sleep(pause)
    return action()


def remove_leftovers(*folders: Path) -> list[str]:
    """Remove what killed commands left in some folders; not in the folders that lie in those.

    What a living process writes is not touched. Of another machine, whose processes cannot be
    seen, only what has not changed for a week is removed.

    Args:
        folders: Where something is about to be written; some may be absent.

    Returns:
        What was done, in sentences for the user; none where nothing was found.
    """
    return [sentence for folder in dict.fromkeys(folders) for sentence in _sweep(folder)]


@dataclass(frozen=True, slots=True)
class _Leftover:
    """Where a temporary thing is, who wrote it, its name if replaced."""

    path: Path
    owner: Owner
    target: Path | None = None


def _sweep(folder: Path) -> list[str]:
    removed: list[tuple[str, int]] = []
    sentences: list[str] = []
    for left in _leftovers(folder):
        size, changed = _extent(left.path)
        age = time.time() - changed
        if not _is_abandoned(left.owner, age):
            if not left.owner.is_here and age > _QUIET_SECONDS:
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


def _leftovers(folder: Path) -> Iterator[_Leftover]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith("."))  # noqa: PTH208
    except OSError:
        return
    for name in names:
        match = _OWNED.fullmatch(name)
        if match is not None:
            started = float(match["started"]) or None
            owner = Owner(match["host"], int(match["pid"]), started, match["token"])
            target = folder / match["name"] if match["kind"] == _ASIDE else None
            yield _Leftover(folder / name, owner, target)


def _is_abandoned(owner: Owner, age: float) -> bool:
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


# A process's start is told from the machine's, which moves when the clock is set.
_CLOCK_SECONDS = 60.0
_held: set[str] = set()
"""Tokens that this process holds; something of its own number that is not here is left over from
work that failed to remove it, or from another process that had the number before."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, and one thing of those that it owns.

    Attributes:
        host: Name of its machine, or that name's `machine_mark`.
        pid: Its number.
        started: Its start in seconds since the epoch; None where it could not be known.
        token: Names what is owned; None in what other versions wrote.
    """

    host: str
    pid: int
    started: float | None
    token: str | None

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host in (socket.gethostname(), machine_mark(socket.gethostname()))

    def is_alive(self) -> bool:
        """Whether the owner still holds it.

        A process of another machine counts as alive, because it cannot be seen from here, and so
        does one that this one may not look at.
        """
        if not self.is_here:
            return True
        if self.pid == os.getpid():
            return self.token in _held
        if not _exists(self.pid):
            return False
        now = process_started(self.pid)
        # In doubt it is the one that was started then.
        return now is None or self.started is None or abs(now - self.started) < _CLOCK_SECONDS

    def drop(self) -> None:
        """Hold it no more."""
        if self.token is not None:
            _held.discard(self.token)


def new_owner() -> Owner:
    """This process as the owner of something new, which it holds until `Owner.drop`."""
    token = uuid.uuid4().hex[-_TOKEN_DIGITS:]
    _held.add(token)
    pid = os.getpid()
    return Owner(socket.gethostname(), pid, process_started(pid), token)


def machine_mark(host: str) -> str:
    """Eight digits that tell machines apart in the name of a file."""
    return hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def process_started(pid: int) -> float | None:
    """When a process started, in seconds since the epoch; None where it cannot be known."""
    return _own_start(pid) if pid == os.getpid() else _start(pid)


# By process id, so that a forked process does not take its parent's start for its own.
@functools.lru_cache(maxsize=1)
def _own_start(pid: int) -> float | None:
    return _start(pid)


def _start(pid: int) -> float | None:
    try:
        import psutil
    except ImportError:
        return None
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _exists(pid: int) -> bool:
    try:
        import psutil
    except ImportError:
        return _may_exist(pid)
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        # No process has such a number: what names it was not written by this program.
        return False


def _may_exist(pid: int) -> bool:
    if os.name == "nt":
        # The question below would be a Ctrl-C there.
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
