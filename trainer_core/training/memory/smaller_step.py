"""`SmallerStep`: makes a step take less memory, by what costs least time first.

There are three ways. All blocks compute their activations again; more blocks are swapped; samples
of a micro-batch go through the base in parts. The first two change no number. The third rounds
sums of gradients in another way, so that it is taken before another one only where the planner
expects a step that is clearly faster (`FULL_SPEED`).
"""

from __future__ import annotations

from collections.abc import Callable

from ...device import is_out_of_memory, release_memory
from ...errors import RunError
from ...offload.block_selection import enough_swapped
from ...offload.load_base import PlacedBase
from ...offload.possible_plans import FULL_SPEED
from ...offload.step_pace import StepPace
from ..step.split_batches import SplitBatches

Way = Callable[[], str]
"""Takes less memory from now on, and says how in words."""


class SmallerStep:
    """Knows what can still be made smaller, and what that costs.

    Args:
        split: Its micro-batches; None where they are not to be divided.
        pace: What the planner knows; None where nothing was planned. Then the ways are taken in
            the order above.
    """

    def __init__(
        self, placed: PlacedBase, split: SplitBatches | None = None, pace: StepPace | None = None
    ) -> None:
        self._placed, self._split, self._pace = placed, split, pace

    def take(self) -> str:
        """Take the way that costs least of those that are left.

        Returns:
            What was done, in a sentence.

        Raises:
            RunError: When none is left; it says in `found` why.
        """
        placed, refused = self._placed, self._placed.refusal or "all blocks are swapped"
        for way in self.ways():
            before = placed.count
            try:
                return way()
            except RunError as error:
                refused = error.found
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            # Behind the handler: the error's frames hold what was made.
            release_memory(placed.device)
            if placed.count > before:
                return self._swapped(before)
        alone = self._split is not None and self._split.divides
        one_by_one = ", and samples go through the base one by one" if alone else ""
        raise RunError(f"{refused}{one_by_one}", "something that can be smaller", "")

    def ways(self) -> list[Way]:
        """What can be done, the least costly first."""
        placed, found = self._placed, list[tuple[float, Way]]()
        now, count = placed.uncheckpointed(), placed.count
        passes = self._split.passes if self._split is not None else 1
        if now:
            found.append((self._seconds(0, count, passes), self._checkpoint))
        if count < placed.most:
            more = self._twice()
            kept = max(0, now - (more - count))
            found.append((self._seconds(kept, more, passes), self._swap))
        if self._split is not None and self._split.can_halve:
            rounded = FULL_SPEED * self._seconds(now, count, 2 * passes)
            found.append((rounded, self._halve))
        return [way for _, way in sorted(found, key=lambda each: each[0])]

    def _seconds(self, kept: int, count: int, passes: int) -> float:
        """Predicted for a step in which so many blocks keep their activations."""
        if self._pace is None:
            return 0.0  # all alike: they stay in their order
        placed = self._placed
        share = 1 - kept / len(placed.every) if placed.every else 1.0
        sent = placed.sent_bytes(count)
        return self._pace.seconds(share, sent, passes, placed.memory.swap_slots)

    def _checkpoint(self) -> str:
        return f"{self._placed.checkpoint_all()} more blocks compute their activations again."

    def _swap(self) -> str:
        before = self._placed.count
        self._placed.swap(self._twice())
        return self._swapped(before)

    def _swapped(self, before: int) -> str:
        return f"{self._placed.count} instead of {before} blocks are swapped."

    def _twice(self) -> int:
        """Twice as many blocks; more where the slots would take what is freed."""
        count, most = self._placed.count, self._placed.most
        frees = enough_swapped(count, 1, self._placed.device_bytes, most)
        return min(max(1, 2 * count, frees), most)

    def _halve(self) -> str:
        assert self._split is not None, "it is a way"
        before = self._split.most
        self._split.halve()
        after = self._split.most
        if before == after:
            return "points of different shapes have a backward pass each."
        return f"{after} instead of {before} samples go through the base at once."
