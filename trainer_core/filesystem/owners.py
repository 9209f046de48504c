"""Who owns something that is not finished, and whether that process still lives.

A process is named by its machine, its number and its start, because numbers are used again. What
one process owns several times, such as the locks of two runs in ComfyUI, is told apart by tokens.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import uuid
from dataclasses import dataclass

# A process's start is told from the machine's, which moves when the clock is set.
_CLOCK_SECONDS = 60.0
_held: set[str] = set()
"""Tokens that this process holds; something of its own number that is not here is left over from
work that failed to remove it, or from another process that had the number before."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, and one thing of those that it owns.

    Attributes:
        host: Name of its machine, or that name's `mark`.
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
        return self.host in (socket.gethostname(), mark(socket.gethostname()))

    def is_alive(self) -> bool:
        """Whether the owner still holds it.

        A process of another machine counts as alive, because it cannot be seen from here, and so
        does one that this one may not look at.
        """
        if not self.is_here:
            return True
        if self.pid == os.getpid():
            return self.token in _held
        return _runs(self.pid, self.started)

    def drop(self) -> None:
        """Hold it no more."""
        if self.token is not None:
            _held.discard(self.token)


def new_owner() -> Owner:
    """This process as the owner of something new, which it holds until `Owner.drop`."""
    token = uuid.uuid4().hex
    _held.add(token)
    pid = os.getpid()
    return Owner(socket.gethostname(), pid, process_started(pid), token)


def mark(host: str) -> str:
    """Eight digits that tell machines apart in the name of a file."""
    return hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def process_started(pid: int) -> float | None:
    """When a process started, in seconds since the epoch; None where it cannot be known."""
    return _own_start(pid) if pid == os.getpid() else _start(pid)


# By number: a process that was forked asks anew.
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


def _runs(pid: int, started: float | None) -> bool:
    """Whether a process is the one that was started then; in doubt it is."""
    if not _exists(pid):
        return False
    now = process_started(pid)
    return now is None or started is None or abs(now - started) < _CLOCK_SECONDS


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
