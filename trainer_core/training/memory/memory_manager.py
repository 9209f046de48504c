"""`MemoryManager`: fits a step into the device, and gives memory to others between steps.

There are three ways, of which the one that costs least time is taken first. All blocks compute
their activations again; more blocks are swapped; samples of a micro-batch go through the base in
parts. The first two change no number: such a run ends with the bits that it would have had. The
third rounds sums of gradients in another way, so that it is taken before another one only where the
planner expects a step that is clearly faster (`FULL_SPEED`).

Between steps a run gives memory to others that need it, and uses what is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from ...device import begin_peak, is_out_of_memory, refused_pins, release_memory, spare_at_peak
from ...errors import RESUME, RunError
from ...offload.block_selection import enough_swapped, fewest_swapped
from ...offload.load_base import PlacedBase
from ...offload.possible_plans import FULL_SPEED, StepPace
from ..observer import Noted, Observer, Warned
from ..optimizers import rehearse
from ..step.gradients import forget_gradients
from ..step.split_batches import SplitBatches
from .device_errors import first_line, full_memory_error

Result = TypeVar("Result")

_SHARE, _LEAST = 0.05, 500 * 10**6
"""Of the device's memory: what stays free when blocks are moved there, and the least of it."""

_CALM, _CALMEST = 8, 256
"""Steps in which nobody needs memory before a run takes back what it gave: first, and at the most.
Each time it is twice as many, so that blocks do not go back and forth."""

_PATIENCE = 32
"""After a false alarm, the most steps before the memory is checked again."""

_PAGEABLE = (
    "The system refuses to pin more RAM ({}): the rest is copied from pageable memory, which takes "
    "longer and changes no number. Closing other programs may help."
)


class MemoryManager:
    """Makes a step smaller where the device's memory is full, and uses room that there is.

    Args:
        observer: Told of every change.
        save: Saves the state after a step; False where it could not.
        may_grow: Whether blocks may be moved onto the device, because the user has not said how
            many are swapped.
        smaller: Makes a step smaller that does not fit; None where the run is to end instead.
        measure: Bytes that stayed free at the last step's peak, and the device's size; None where
            it does not tell.
    """

    def __init__(
        self,
        placed: PlacedBase,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        observer: Observer,
        save: Callable[[int], bool | None],
        *,
        may_grow: bool = False,
        smaller: SmallerStep | None = None,
        measure: Callable[[], tuple[int, int] | None] | None = None,
    ) -> None:
        self._placed, self._parameters, self._optimizer = placed, parameters, optimizer
        self._observer, self._save = observer, save
        self._may_grow, self._smaller = may_grow, smaller
        self._measure = measure or partial(
            spare_at_peak, placed.device, partial(placed.machine.free_memory, placed.device)
        )
        self._steps, self._yields, self._pageable = 0, True, False
        self._planned, self._calm, self._wait = placed.count, 0, _CALM
        self._short, self._look, self._patience = False, 0, 1
        self._keeps = 0

    def restart(self, optimizer: torch.optim.Optimizer) -> None:
        """Continue from a restored state, with an optimizer that has made no update yet."""
        self._optimizer, self._steps, self._look = optimizer, 0, 0
        # The peak since the last look includes what restoring takes.
        self._short = False

    def retry_when_full(self, step: int, work: Callable[[], Result]) -> Result:
        """Compute a step's gradients, and again in less memory as often as it is full.

        Randomness comes from counters, so that the same step gives the same numbers again.

        Args:
            step: The optimizer step, from 1.
            work: Leaves gradients behind, and changes nothing else.

        Raises:
            RunError: When memory is full although nothing can be smaller; the state before the
                step is saved.
        """
        if not self._steps:
            # What the first update will take is taken once before it, while nothing can be lost.
            self._until_it_fits(step, partial(rehearse, self._optimizer))
        result = self._until_it_fits(step, work)
        self._steps += 1
        return result

    def between_steps(self) -> None:
        """Give memory to others that need it, and take it back; use what the first step left.

        What torch keeps in pieces looks as if others had it. So a shortage counts when it is there
        in two steps in a row, the second of which began with nothing kept, and would have had too
        little at its peak.
        """
        placed = self._placed
        if refused_pins and not self._pageable:
            self._pageable = True
            self._observer.notify(Warned(_PAGEABLE.format(min(refused_pins))))
        missing = placed.machine.missing_memory(placed.device)
        if missing > 0 and self._yields:
            self._calm = 0
            if self._steps >= self._look:
                self._press(missing)
            return
        self._short, self._calm = False, self._calm + 1
        if self._steps == 0 or self._calm == self._wait:
            begin_peak(placed.device)
        elif self._may_grow and placed.count:
            self._may_grow = False
            self._grow(0)
            self._planned = placed.count
        elif placed.needs_choice():
            self._keep()
        elif self._calm > self._wait and placed.count > self._planned:
            self._calm, self._wait = 0, min(2 * self._wait, _CALMEST)
            self._grow(self._planned)

    def _until_it_fits(self, step: int, work: Callable[[], Result]) -> Result:
        while True:
            reason = None
            try:
                return work()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
            # Behind the handler: the error's frames hold the graph.
            self._make_room(step, reason)

    def _make_room(self, step: int, reason: str) -> None:
        """Forget what was computed of a step, and let it take less memory."""
        self._may_grow = False
        if not self._placed.uncheckpointed():
            self._placed.checkpoint_all()  # also from now on
        forget_gradients(self._parameters)
        release_memory(self._placed.device)
        if self._smaller is None:
            raise self._full(step, reason, "training.recovery.smaller is false")
        try:
            done = self._smaller.take()
        except RunError as error:
            raise self._full(step, reason, error.found) from None
        self._planned = self._placed.count
        self._observer.notify(Warned(f"Memory was full in step {step} ({reason}): {done}"))

    def _full(self, step: int, reason: str, refused: str) -> RunError:
        """Save the state before a step that does not fit, and say how to go on."""
        saved = ""
        if step > 1 and self._save(step - 1) is not False:
            saved = f"The state before this step is saved: go on with {RESUME}."
        found = f"the device's memory is full in step {step} ({reason}), and {refused}"
        return full_memory_error(found, "a training step", saved)

    def _press(self, missing: int) -> None:
        placed, before = self._placed, self._placed.count
        measured = self._measure()
        if measured is not None:
            again, self._short = self._short, not self._short
            begin_peak(placed.device)
            if not again:
                return
            missing = max(0, -measured[0])
        if self._keeps and (more := placed.checkpoint_all()):
            self._keeps, line = 0, f"{more} more blocks compute their activations again."
            self._observer.notify(Warned(f"Others need the device's memory: {line}"))
            return
        wanted = enough_swapped(before, missing, placed.device_bytes, placed.most)
        if wanted == before:
            self._look = self._steps + self._patience
            self._patience = min(2 * self._patience, _PATIENCE)
            return
        self._may_grow, self._patience = False, 1
        try:
            placed.swap(wanted)
        except RunError as error:
            # Nobody's need is worth a run that has all that it needs itself.
            self._yields = False
            line = f"Others need the device's memory, and no more is given: {error.found}."
            self._observer.notify(Warned(line))
            return
        self._tell("Others need the device's memory", before)

    def _grow(self, least: int) -> None:
        measured = self._measure()
        if measured is None:
            return
        placed, before, (free, size) = self._placed, self._placed.count, measured
        wanted = max(least, fewest_swapped(before, free, placed.device_bytes, _reserve(size)))
        if wanted == before:
            return
        try:
            placed.swap(wanted)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            self._tell(f"{free / 2**30:.1f} GiB were free at the peak of a step", before)
            return
        # Behind the handler: others were quicker, or the room is in pieces.
        release_memory(placed.device)
        placed.swap(before)

    def _keep(self) -> None:
        """Let blocks keep their activations in what the step with the largest inputs left."""
        measured = self._measure()
        if measured is None:
            self._placed.checkpoint_all()
            return
        free, size = measured
        now = self._placed.keep(free - _reserve(size))
        if now != self._keeps:
            self._keeps = now
            line = f"{free / 2**30:.1f} GiB were free at the peak of a step: {now} blocks keep"
            self._observer.notify(Noted(f"{line} their activations and are not computed again."))

    def _tell(self, why: str, before: int) -> None:
        now = self._placed.count
        self._observer.notify(Warned(f"{why}: {now} instead of {before} blocks are swapped."))


def _reserve(size: int) -> int:
    return max(int(size * _SHARE), _LEAST)


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
