"""`Unwritten`: keeps what a full disk did not take, and tries again; the run does not end."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...errors import StorageError

PATIENCE = 60.0
"""Seconds after which what could not be written is tried again before its next occasion."""


class Unwritten:
    """Knows what could not be written, and when to try again.

    Args:
        warn: Told once for each thing and cause, and again when it has worked in between.
    """

    def __init__(self, warn: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._warn, self._note = warn, note
        self._failed: dict[str, float] = {}
        self._told: set[tuple[str, int | None]] = set()

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Write something, or tell that it cannot be written.

        Args:
            what: Its name in messages, such as "checkpoint".
            write: Writes it whole or not at all.
        """
        try:
            write()
        except StorageError as error:
            self._failed[what] = time.monotonic()
            cause = (what, getattr(error.__cause__, "errno", None))
            if cause not in self._told:
                self._told.add(cause)
                self._warn(f"{error.found} ({what}). Training goes on, and tries it again.")
            return False
        if self._failed.pop(what, None) is not None:
            self._told = {each for each in self._told if each[0] != what}
            self._note(f"There is room again: {what} is written.")
        return True

    def due(self, what: str) -> bool:
        """Whether something is to be tried again without waiting for its next occasion."""
        since = self._failed.get(what)
        return since is not None and time.monotonic() - since >= PATIENCE

    def failed(self, what: str) -> bool:
        """Whether the last attempt to write something was in vain."""
        return what in self._failed
