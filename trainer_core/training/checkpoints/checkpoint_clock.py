"""`CheckpointClock`: when a checkpoint is due by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..observer import RunRequests


class CheckpointClock:
    """Asks for a checkpoint when the last one is so many minutes old.

    Only the first process of a run has one: the others hear of it with its other requests.

    Args:
        minutes: ``training.checkpoint_minutes``; 0 asks for none.
        seconds: Tells the time in seconds, and only grows.
    """

    def __init__(self, minutes: float, seconds: Callable[[], float] = time.monotonic) -> None:
        self._wait = minutes * 60
        self._seconds = seconds
        self._last = seconds()

    def asking(self, requests: RunRequests) -> RunRequests:
        """The same requests, and `save` where a checkpoint is due."""
        due = self._wait > 0 and self._seconds() - self._last >= self._wait
        return requests._replace(save=True) if due else requests

    def saved(self) -> None:
        """Begin to count anew: a checkpoint was written, for whatever reason."""
        self._last = self._seconds()
