"""What the training loop calls at its landmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from ..types import StepResult
from .observer import RunRequests
from .step import Gradients, MicroStep, SampleError

ComputeStep = Callable[[int, Gradients], list[MicroStep]]
"""A step, from 1, and what computes its gradients, to its micro-batches."""
ComputeMicro = Callable[[int, int], MicroStep]
"""Computes a micro-batch: of a step (from 1), the number within it (from 0)."""


def as_a_whole(compute: ComputeMicro, step: int, micro: int) -> Iterable[MicroStep]:
    """A micro-batch goes through the base at once."""
    return (compute(step, micro),)


@dataclass(frozen=True, slots=True)
class Measured:
    """The loss on held-out images, and on as many trained ones; None where it was not measured.

    `cancelled` says whether the run was cancelled meanwhile, `stop` whether it is to end with its
    adapter, because it gets no better.
    """

    loss: float | None = None
    trained: float | None = None
    cancelled: bool = False
    stop: bool = False

    def written_to(self, result: StepResult) -> StepResult:
        """The step behind which it was measured, with the losses."""
        return replace(result, validation_loss=self.loss, trained_loss=self.trained)


@dataclass(frozen=True, slots=True)
class LoopHooks:
    """What the loop calls at its landmarks; every process calls each of them.

    Attributes:
        record: Write a finished step down and tell the observer.
        save: Write a checkpoint of the state after a step.
        preview: Sample the preview images of a step; whether the run was cancelled meanwhile.
        broken: Told of a step that is not finite, what of it, and its micro-batches; raises unless
            the step is left out.
        requests: What this process was asked for.
        compute: Computes a step's gradients, and does it again where memory was full.
        divided: Computes a micro-batch, given what computes it as a whole, the step and its number;
            in parts where memory was full. Gradients of a part are computed before the next one.
        between: Called before each step: what is kept where may change.
        measure: Measure the loss on held-out images behind a step, where it is due; the second
            argument says whether the run ends there.
        updated: Called behind each update of the weights, before anything looks at them.
        seen: Takes what the samples of a step were off by.
        save_due: Whether a checkpoint is due behind a step for another reason than its number.
        kept_on_failure: Saves the state behind a step where the body fails.
    """

    record: Callable[[StepResult], None]
    save: Callable[[int], None]
    preview: Callable[[int], bool]
    broken: Callable[[int, str, Sequence[MicroStep]], None]
    requests: Callable[[], RunRequests]
    compute: ComputeStep = lambda step, gradients: gradients()
    divided: Callable[[ComputeMicro, int, int], Iterable[MicroStep]] = as_a_whole
    between: Callable[[], None] = lambda: None
    measure: Callable[[int, bool], Measured] = lambda step, ends: Measured()
    updated: Callable[[int], None] = lambda step: None
    seen: Callable[[int, Sequence[SampleError]], None] = lambda step, errors: None
    save_due: Callable[[int], bool] = lambda step: False
    kept_on_failure: Callable[[int], AbstractContextManager[object]] = lambda step: nullcontext()

    def behind(self, result: StepResult, ends: bool) -> Measured:
        """Measure behind a step, where it is due, and write the step down however that ends.

        Args:
            result: The step.
            ends: Whether the run ends there.
        """
        with self.kept_on_failure(result.step):
            try:
                measured = self.measure(result.step, ends)
            except Exception:
                # The state that is saved now has made this step.
                self.record(result)
                raise
        self.record(measured.written_to(result))
        return measured
