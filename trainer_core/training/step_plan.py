"""`StepPlan`: which micro-batches of each step a process computes, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..data.batches import BatchPlan
from .read_ahead import Place


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The micro-batches of each step.

    A batch that is trained several times, with several noises or with both signs of a slider, makes
    as many micro-batches in a row. They are no larger than one, so that they need no more memory.

    Attributes:
        batches: The order of the samples.
        dealt: ``(index, count)``, as of `BatchPlan.dealt`.
        times: How often each sample is trained in its step.
    """

    batches: BatchPlan
    dealt: tuple[int, int] = (0, 1)
    times: int = 1

    def micro_batches(self, step: int) -> Sequence[int]:
        """The micro-batches, from 0, of a step, from 1, that this process computes."""
        dealt = self.batches.dealt(step, self.dealt)
        if self.times == 1:
            return dealt
        return [batch * self.times + turn for batch in dealt for turn in range(self.times)]

    def samples(self, step: int) -> int:
        """Samples of a step in all processes, each as often as it is trained."""
        return self.batches.samples(step) * self.times

    def following(self, last: int) -> Callable[[int, int], Place | None]:
        """A function from a micro-batch to the one behind it; None behind the last step."""

        def following(step: int, micro: int) -> Place | None:
            later = [each for each in self.micro_batches(step) if each > micro]
            if later:
                return step, later[0]
            return (step + 1, self.micro_batches(step + 1)[0]) if step < last else None

        return following

    def endless(self) -> Iterator[Place]:
        """Every step and micro-batch, without end."""
        step = 1
        while True:
            yield from ((step, micro) for micro in self.micro_batches(step))
            step += 1
