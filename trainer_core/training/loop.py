"""The training loop, and only the loop.

Take a micro-batch, draw sigma and noise, predict, measure, go backward; after the last micro-batch
of a step clip, update, record; every so often preview and save; stop when asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from ..config import TrainingSection
from ..types import StepResult
from .observer import Wishes
from .optimizer import set_learning_rate
from .processes import Processes
from .step import MicroStep, non_finite_error


@dataclass(frozen=True, slots=True)
class LoopHooks:
    """What the loop calls at its landmarks; every process calls each of them.

    Attributes:
        record: Write a finished step down and tell the observer.
        save: Write a checkpoint of the state after a step.
        preview: Draw the preview pictures of a step.
        wishes: What this process was asked for.
    """

    record: Callable[[StepResult], None]
    save: Callable[[int], None]
    preview: Callable[[int], None]
    wishes: Callable[[], Wishes]


@dataclass(frozen=True, slots=True)
class Loop:
    """Everything a run needs between its first and its last step.

    Attributes:
        settings: Length, batch and clipping.
        preview_every: Steps between previews, 0 for none.
        micro_batches: The micro-batches of a step that this process computes.
        micro_step: Computes one of them.
        parameters: The adapter's parameters in a fixed order.
        optimizer: Over those parameters.
        learning_rate: Step (from 1) to learning rate.
        epoch: Step to epochs done.
    """

    settings: TrainingSection
    preview_every: int
    micro_batches: Sequence[int]
    micro_step: Callable[[int, int], MicroStep]
    parameters: Sequence[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    epoch: Callable[[int], float]
    processes: Processes
    hooks: LoopHooks

    def run(self, done: int) -> tuple[str, int]:
        """Train from the step after `done` to the last.

        Args:
            done: Steps already made; 0 for a new run.

        Returns:
            ``done`` or ``cancelled``, and the last step made.

        Raises:
            NonFiniteError: When loss or gradient is not finite; the state before is saved.
        """
        saved = done
        if self.preview_every and not done:
            self.hooks.preview(0)
        for step in range(done + 1, self.settings.steps + 1):
            result, wishes = self._step(step)
            self.hooks.record(result)
            if wishes.preview or self._due(step, self.preview_every):
                self.hooks.preview(step)
            if wishes.end or wishes.save or self._due(step, self.settings.checkpoint_every):
                self.hooks.save(step)
                saved = step
            if wishes.end and step < self.settings.steps:
                return "cancelled" if wishes.cancel else "done", step
        if saved < self.settings.steps:
            self.hooks.save(self.settings.steps)
        return "done", self.settings.steps

    def _step(self, step: int) -> tuple[StepResult, Wishes]:
        started = time.perf_counter()
        rate = self.learning_rate(step)
        set_learning_rate(self.optimizer, rate)
        samples = self.settings.batch_size * self.settings.gradient_accumulation_steps
        loss, sigma_sum = 0.0, 0.0
        seen: list[MicroStep] = []
        for micro in self.micro_batches:
            part = self.micro_step(step, micro)
            self.processes.backward(part.loss / samples)
            loss += part.loss.item() / samples
            sigma_sum += sum(part.sigmas)
            seen.append(part)
        numbers = [loss, sigma_sum, *map(float, self.hooks.wishes())]
        loss, sigma_sum, *asked = self.processes.sum_numbers(numbers)
        self.processes.sum_gradients(self.parameters)
        limit = self.settings.max_grad_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._stop_at(step, "the loss" if not math.isfinite(loss) else "a gradient", seen)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        result = StepResult(
            step=step,
            epoch=self.epoch(step),
            loss=loss,
            learning_rate=rate,
            grad_norm=norm,
            sigma_mean=sigma_sum / samples,
            step_seconds=time.perf_counter() - started,
            time=time.time(),
        )
        return result, Wishes(*(count > 0 for count in asked))

    def _stop_at(self, step: int, what: str, seen: Sequence[MicroStep]) -> NoReturn:
        # Nothing of this step has reached the weights: they are the last good state.
        self.optimizer.zero_grad(set_to_none=True)
        if step > 1:
            self.hooks.save(step - 1)
        raise non_finite_error(step, what, seen)

    @staticmethod
    def _due(step: int, every: int) -> bool:
        return every > 0 and step % every == 0
