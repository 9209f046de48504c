"""The training loop: go backward from each micro-batch, clip, update, record, save, preview."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..config import TrainingSection
from ..types import StepResult
from .gradients import clip_gradients, forget_gradients, go_backward
from .loop_hooks import LoopHooks
from .observer import RunRequests
from .optimizers import set_learning_rate, update
from .processes import Processes
from .step import MicroStep, read_numbers


@dataclass(frozen=True, slots=True)
class Loop:
    """Everything a run needs between its first and its last step.

    Attributes:
        settings: Clipping and checkpoints.
        steps: Length of the run.
        preview_every: Steps between previews, 0 for none.
        micro_batches: Step to its micro-batches that this process computes.
        samples: Step to the number of samples that it trains, each time for itself.
        times: How often it trains each of them.
        micro_step: Computes one of them.
        parameters: The adapter's parameters in a fixed order.
        optimizer: Over those parameters.
        learning_rate: Step (from 1) to learning rate.
        epoch: Step to epochs done.
    """

    settings: TrainingSection
    steps: int
    preview_every: int
    micro_batches: Callable[[int], Sequence[int]]
    samples: Callable[[int], int]
    micro_step: Callable[[int, int], MicroStep]
    parameters: Sequence[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    epoch: Callable[[int], float]
    processes: Processes
    hooks: LoopHooks
    times: int = 1

    def run(self, done: int) -> tuple[str, int]:
        """Train from the step after `done` to the last.

        Args:
            done: Steps already made; 0 for a new run.

        Returns:
            ``done`` or ``cancelled``, and the last step made.

        Raises:
            NonFiniteError: When loss or gradient is not finite, and the run is not to go on.
            GoBackError: When it is to go on from a checkpoint.
        """
        last, every = self.steps, self.settings.checkpoint_every
        if not done and self._cancelled_before():
            self.hooks.save(0)
            return "cancelled", 0
        for step in range(done + 1, last + 1):
            self.hooks.between()
            result, requests = self.make_step(step)
            ends = not requests.cancel and (requests.stop or step == last)
            measured = self.hooks.behind(result, ends)
            requests = requests.stopping(measured.stop)
            saved = step == last or requests.end or requests.save or self.hooks.save_due(step)
            if saved := saved or self._due(step, every):
                self.hooks.save(step)  # before the previews: they take long and may fail
            due = requests.preview or self._due(step, self.preview_every)
            # What the run ends with is always shown.
            due = due or (self.preview_every > 0 and (step == last or measured.stop))
            cancelled = requests.cancel or measured.cancelled or (due and self.hooks.preview(step))
            if step < last and (cancelled or requests.stop):
                if not saved:
                    self.hooks.save(step)
                return "cancelled" if cancelled else "done", step
        return "done", last

    def _cancelled_before(self) -> bool:
        """Look at the base before the first step; whether the run was cancelled meanwhile."""
        cancelled = self.hooks.measure(0, False).cancelled
        return cancelled or (self.preview_every > 0 and self.hooks.preview(0))

    def make_step(self, step: int) -> tuple[StepResult, RunRequests]:
        """Make one step, and hear what the run is asked for."""
        started = time.perf_counter()
        learning_rate = self.learning_rate(step)
        set_learning_rate(self.optimizer, learning_rate)
        samples = self.samples(step)
        seen = self.hooks.compute(step, lambda: self._gradients(step, samples))
        self.processes.sum_gradients(self.parameters)
        norm = clip_gradients(self.parameters, self.settings.max_grad_norm)
        numbers = read_numbers(self.processes, seen, norm, samples, self.times)
        loss, norm = numbers.loss, numbers.norm
        if not (finite := math.isfinite(loss + norm)):
            # Nothing of this step has reached the weights: they are the last good state.
            forget_gradients(self.parameters)
            self.hooks.broken(step, "a gradient" if math.isfinite(loss) else "the loss", seen)
            loss = norm = math.nan
        # Asked after the wait, which takes nearly all of a step.
        asked = self.processes.sum_numbers([float(each) for each in self.hooks.requests()])
        if finite:
            update(self.optimizer, self.parameters)
            forget_gradients(self.parameters)
            self.hooks.updated(step)
            self.hooks.seen(step, numbers.seen)
        result = StepResult(
            step=step,
            epoch=self.epoch(step),
            loss=loss,
            learning_rate=learning_rate,
            grad_norm=norm,
            sigma_mean=numbers.sigma_sum / samples,
            step_seconds=time.perf_counter() - started,
            time=time.time(),
            skipped=not finite,
        )
        return result, RunRequests(*(count > 0 for count in asked))

    def _gradients(self, step: int, samples: int) -> list[MicroStep]:
        seen: list[MicroStep] = []
        for micro in self.micro_batches(step):
            parts = self.hooks.divided(self.micro_step, step, micro)
            seen.append(go_backward(parts, samples, self.processes.backward))
        return seen

    @staticmethod
    def _due(step: int, every: int) -> bool:
        return every > 0 and step % every == 0
