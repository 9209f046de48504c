"""What becomes of a run whose numbers are not finite.

A step whose loss or gradient is not finite is left out: weights, their average and the optimizer's
state stay as they are, and the schedule goes on by the step's number. After some in a row the run
goes back to an older checkpoint and on with a lower learning rate; when that does not help either,
it ends and says where it broke.

All of it follows from the seed and what a checkpoint holds, so that a run that is killed anywhere
ends with the same bits. Noise, noise levels and samples of a step are the same after a return:
only the weights are others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..config import RecoverySection
from ..errors import NonFiniteError
from .step import MicroStep, non_finite_error


class Counts(Protocol):
    """What survives of earlier faults; a `TrainState` has it.

    Attributes:
        skipped: Steps in a row that were left out.
        returns: How often the run has gone back.
    """

    skipped: int
    returns: int


class GoBackError(Exception):
    """The run is to go on from an older checkpoint, with a lower learning rate.

    Attributes:
        step: Which is not finite.
        to: Steps that the checkpoint has made.
    """

    def __init__(self, step: int, to: int) -> None:
        super().__init__(step, to)
        self.step, self.to = step, to


@dataclass(frozen=True, slots=True)
class Recovery:
    """Decides what becomes of a step that is not finite; every process comes to the same.

    Attributes:
        settings: How often the run goes on by itself.
        counts: What has happened before.
        steps: The run's length.
        target: The step (from 1) that broke first to the steps of the checkpoint to go back to,
            None where there is none. Every process asks at the same time.
        place: Finds out where in the model a step broke, in words.
        end: Saves what can be saved, and says how to go on; given the step at which the run ends
            and the first of those in a row.
        warn: Told of every decision in one line.
    """

    settings: RecoverySection
    counts: Counts
    steps: int
    target: Callable[[int], int | None]
    place: Callable[[int], str]
    end: Callable[[int, int], str]
    warn: Callable[[str], None]

    def broken(self, step: int, what: str, parts: Sequence[MicroStep]) -> None:
        """Leave a step out, or raise.

        Args:
            step: Whose numbers are not finite.
            what: Which of them, such as "the loss".
            parts: Its micro-batches.

        Raises:
            GoBackError: When the run is to go on from a checkpoint.
            NonFiniteError: When it is to end; it names step, layer, noise levels and samples.
        """
        row = self.counts.skipped + 1
        first = step - row + 1
        # A run that never made a step has nothing to give at its end.
        in_vain = first == 1 and step == self.steps
        if row <= self.settings.skips and not in_vain:
            told = f"{what} is not finite ({row} in a row, {self.settings.skips} at most)"
            self.warn(f"Step {step} is left out: {told}.")
            return
        self.go_back(step, first)
        raise non_finite_error(step, what, parts, self.end(step, first), self.place(step))

    def weights(self, step: int, error: NonFiniteError) -> None:
        """Go back from weights that are not finite behind a step, or raise what was found.

        Raises:
            GoBackError: When the run is to go on from a checkpoint.
            NonFiniteError: When it is to end.
        """
        self.go_back(step + 1, step + 1)
        remedy = self.end(step + 1, step + 1)
        raise NonFiniteError(error.found, error.expected, remedy) from error

    def go_back(self, step: int, first: int) -> None:
        """Raise where the run may, and can, go back.

        Args:
            step: Which is not finite.
            first: Of those in a row.

        Raises:
            GoBackError: With the checkpoint to go on from.
        """
        if self.counts.returns >= self.settings.returns:
            return
        to = self.target(first)
        if to is not None:
            raise GoBackError(step, to)


def rate_share(settings: RecoverySection, returns: int) -> float:
    """Of the learning rate: what a run goes on with that has gone back so often."""
    return settings.rate_factor**returns


def return_note(settings: RecoverySection, error: GoBackError, returns: int) -> str:
    """What a run says that goes back, in one line.

    Args:
        settings: How often it may.
        error: Why, and where to.
        returns: How often it has, with this one.
    """
    share = rate_share(settings, returns)
    place = f"the checkpoint of step {error.to}" if error.to else "its start"
    return (
        f"Step {error.step} is not finite. The run goes back to {place}, and on with {share:g} of "
        f"the learning rate (return {returns} of {settings.returns})."
    )
