"""Which process is at work on which file, so that two that build one cache share the work.

A claim is a file of the key's name in the folder ``claims``: whoever creates it has
it. It names its owner; that of a process that has died is taken over under a lock, by exactly one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ...filesystem.storage import acquire, lock_holder, owner_text, storage_error, unlink
from ...filesystem.temporary import Owner, new_owner, patiently

CLAIMS = "claims"
_TAKEOVER = "takeover.lock"
_FOREIGN_SECONDS = 300.0
"""How long a claim of another machine is waited for."""


class Claims:
    """The claims of one build; leaving it gives all of them up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CLAIMS
        self._owner: Owner | None = None
        self._held: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release(list(self._held))
        if self._owner is not None:
            self._owner.drop()
            self._sweep()

    def take(self, key: str) -> bool:
        """Claim a key; False when a process that lives has it.

        Raises:
            StorageError: When the folder takes no files.
        """
        path = self._folder / key
        try:
            taken = self._create(path) or (self._clear(path) and self._create(path))
        except OSError as error:
            raise storage_error(path, error) from error
        if taken:
            self._held.add(key)
        return taken

    def release(self, keys: Sequence[str]) -> None:
        """Give claims up."""
        for key in keys:
            self._held.discard(key)
            with contextlib.suppress(OSError):
                unlink(self._folder / key)

    def _create(self, path: Path) -> bool:
        if self._owner is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._owner = new_owner()
        content = owner_text(self._owner).encode()
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            # Windows keeps a name that is being removed as long as somebody reads the file.
            descriptor = patiently(lambda: os.open(path, flags, 0o666))
        except FileExistsError:
            return False
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        return True

    def _clear(self, path: Path) -> bool:
        """Remove the claim of a process that died; True when there is none any more."""
        if _binds(path):
            return False
        guard = acquire(self._folder / _TAKEOVER)
        if guard is None:
            if not _binds(self._folder / _TAKEOVER):
                unlink(self._folder / _TAKEOVER)
            return False
        with guard:
            # Somebody else may have been here first, and the claim be a living one's now.
            if _binds(path):
                return False
            unlink(path)
            return True

    def _sweep(self) -> None:
        """Remove what killed processes left."""
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.name != _TAKEOVER and not path.name.startswith("."):
                    self._clear(path)


def is_old(path: Path, seconds: float) -> bool:
    """Whether a file was written longer ago, or is said to be written in the future."""
    try:
        return abs(time.time() - path.stat().st_mtime) > seconds
    except OSError:
        return True


def _binds(path: Path) -> bool:
    """Whether somebody who lives has it; a moment after it was made its owner is not named yet.

    Nobody can see from here whether a process of another machine lives. Encoding a batch takes
    moments, and when two encode it both write the same, so that an old claim is not waited for.
    """
    owner = lock_holder(path)
    return owner is not None and (owner.is_here or not is_old(path, _FOREIGN_SECONDS))
