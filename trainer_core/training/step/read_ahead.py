"""`ReadAhead`: the next micro-batches are read in a thread while the device computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Read = TypeVar("Read")
Place = tuple[int, int]
"""Step and micro-batch."""

_DEPTH = 4
"""The most micro-batches that are kept ready."""


class ReadAhead(Generic[Read]):
    """Makes what will be asked for next in a thread; what it gives is what `make` gives.

    An error of `make` comes out where its micro-batch is asked for. Closing it ends the thread.

    Args:
        make: Step and micro-batch to what is asked for; changes nothing.
        following: The place that is asked for behind one; None behind the last.
    """

    def __init__(
        self, make: Callable[[int, int], Read], following: Callable[[int, int], Place | None]
    ) -> None:
        self._make, self._following = make, following
        # One thread: the order of reading is that of the steps, and a disk is not read crosswise.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._ready: dict[Place, Future[Read]] = {}

    def __call__(self, step: int, micro: int) -> Read:
        """Give a micro-batch, and go on reading.

        Args:
            step: Optimizer step, from 1; earlier ones than before may be asked for again.
            micro: Micro-batch within the step, from 0.
        """
        place = (step, micro)
        mine = self._ready.pop(place, None) or self._thread.submit(self._make, *place)
        wanted: list[Place] = []
        following = self._following(*place)
        while following is not None and len(wanted) < _DEPTH:
            wanted.append(following)
            following = self._following(*following)
        for each in self._ready.keys() - set(wanted):
            self._ready.pop(each).cancel()
        for each in wanted:
            if each not in self._ready:
                self._ready[each] = self._thread.submit(self._make, *each)
        return mine.result()

    def close(self) -> None:
        """Forget what was read and wait for the thread to end."""
        self._ready.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)
