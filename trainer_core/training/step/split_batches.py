"""`SplitBatches`: micro-batches in parts, one after the other, where a whole one has no room.

The samples are the same, with the same noise and noise levels, and so is the sum of their
gradients, up to rounding. Dropout inside the adapter is drawn for each part, as it is for each of
several processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .micro_batch import MicroBatchLoss, MicroBatchResult, Points


class SplitBatches:
    """Divides micro-batches into parts that are no larger than what is known to fit.

    How much goes through the base at once is counted in numbers of the latents, so that a limit
    that was found with large images leaves batches of small ones whole.

    Args:
        enabled: Whether they may be divided at all.
    """

    def __init__(self, maker: MicroBatchLoss, *, enabled: bool = True) -> None:
        self._maker, self._enabled = maker, enabled
        self._limit: int | None = None
        self._last: Sequence[Points] = ()

    def __call__(self, step: int, micro: int) -> Iterator[MicroBatchResult]:
        """Compute a micro-batch, each part when it is asked for.

        Yields:
            One part each, the whole where nothing was divided.
        """
        self._last = self._maker.points(step, micro)
        if self._limit is None:
            yield self._maker.compute(self._last, step, micro)
            return
        for number, part in enumerate(self._parts(self._last)):
            yield self._maker.compute([part], step, micro, number)

    @property
    def passes(self) -> int:
        """Of the last micro-batch."""
        return len(self._last) if self._limit is None else sum(1 for _ in self._parts(self._last))

    @property
    def most(self) -> int:
        """Samples of the largest part of the last micro-batch; 0 before the first one."""
        return max(map(self._rows, self._last), default=0)

    def halve(self) -> None:
        """Let half as many samples of the last micro-batch go through at once (`can_halve`)."""
        # A large sample that goes alone already leaves the others room, and no reason to stay.
        divided = [each for each in self._last if self._rows(each) > 1] or self._last
        self._limit = max(_row(each) * -(-self._rows(each) // 2) for each in divided)

    @property
    def divides(self) -> bool:
        """Whether micro-batches are divided, if they are large."""
        return self._limit is not None

    @property
    def can_halve(self) -> bool:
        """Whether a part of the last micro-batch can be smaller."""
        # Passes of other shapes are divided first of all: each then has a backward pass of its own.
        together = self._limit is None and len(self._last) > 1
        return self._enabled and (self.most > 1 or together)

    def _rows(self, points: Points) -> int:
        """The samples of them that go through the base at once."""
        count = len(points.sigmas)
        return count if self._limit is None else max(1, min(count, self._limit // _row(points)))

    def _parts(self, passes: Iterable[Points]) -> Iterator[Points]:
        for points in passes:
            count, rows = len(points.sigmas), self._rows(points)
            for start in range(0, count, rows):
                yield points.part(start, min(start + rows, count))


def _row(points: Points) -> int:
    """Numbers of the latents of one sample, with those of its control images."""
    return sum(each[0].numel() for each in (points.noisy, *points.controls))
