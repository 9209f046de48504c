"""`StepPlan`: the micro-batches of each step, as one process computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...data.batch_plan import BatchPlan
from .read_ahead import Place


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The micro-batches of each step.

    A batch that is trained several times, with several noises or both signs of a slider, becomes
    several micro-batches in a row. So it takes no more memory than a batch that is trained once.

    Attributes:
        batches: The order of the samples.
        dealt: ``(index, count)`` of this process, as in `BatchPlan.dealt`.
        times_per_sample: How often a step trains each sample.
    """

    batches: BatchPlan
    dealt: tuple[int, int] = (0, 1)
    times_per_sample: int = 1

    def micro_batches(self, step: int) -> Sequence[int]:
        """The micro-batches (from 0) of a step (from 1) that this process computes."""
        dealt = self.batches.dealt(step, self.dealt)
        if self.times_per_sample == 1:
            return dealt
        return [
            batch * self.times_per_sample + turn
            for batch in dealt
            for turn in range(self.times_per_sample)
        ]

    def samples(self, step: int) -> int:
        """Number of samples in a step, in all processes; each counts as often as it is trained."""
        return self.batches.samples(step) * self.times_per_sample

    def following(self, last: int) -> Callable[[int, int], Place | None]:
        """Make a function from a micro-batch to the next one; None after the last step."""

        def following(step: int, micro: int) -> Place | None:
            later = [each for each in self.micro_batches(step) if each > micro]
            if later:
                return step, later[0]
            return (step + 1, self.micro_batches(step + 1)[0]) if step < last else None

        return following

    def endless(self) -> Iterator[Place]:
        """Yield step and micro-batch of all steps, without end."""
        step = 1
        while True:
            yield from ((step, micro) for micro in self.micro_batches(step))
            step += 1
