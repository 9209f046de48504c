"""`Trainer`: the training loop, with its checkpoints, validation and previews."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..adapters.parameter_groups import parameter_groups
from ..config import RunConfig
from ..errors import RESUME, NonFiniteError
from ..types import StepResult
from .checkpoints.checkpoint import Checkpoint, read_whole_checkpoint
from .checkpoints.checkpoint_clock import CheckpointClock
from .checkpoints.longer_run import ReplannedSchedule, replan_schedule
from .checkpoints.non_finite_recovery import (
    RestoreSignal,
    checkpoint_to_restore,
    rate_share,
    restore_note,
)
from .checkpoints.run_folder import version_number
from .checkpoints.train_state import TrainState
from .memory.memory_manager import MemoryManager
from .metrics.loss_ledger import indices_by_place
from .metrics.step_metrics import StepMetrics
from .objectives.slider import restoring_strength
from .objectives.validation import Validation, ValidationResult
from .observer import CheckpointRestored, Noted, Observer, RunRequests, StoppingObserver, Warned
from .optimizers import make_optimizer, set_learning_rate, update
from .recorder import Recorder
from .step.gradients import clip_gradients, forget_gradients, forward_and_backward
from .step.learning_rate import make_schedule
from .step.micro_batch import MicroBatchResult, SampleLoss, non_finite_error, read_numbers
from .step.non_finite_layer import broken_place
from .step.processes import Processes
from .step.step_clock import StepClock
from .step.step_plan import StepPlan

MicroBatchParts = Callable[[int, int], Iterable[MicroBatchResult]]
"""Step (from 1) and micro-batch (from 0) to its parts: several where the device has no room for all
samples at once. The gradients of a part are computed before the next part."""


class Trainer:
    """Trains an adapter to the end of its run.

    Each process has a trainer, and all of them make the same collective calls in the same order.
    Only the first process has a recorder, which writes files and notifies the observer of steps.

    Args:
        state: Adapter, optimizer and the number of steps made.
        observer: May request an end, a checkpoint or previews.
        parameters: The trained parameters; unset: those of the adapter.
        recorder: Writes metrics, checkpoints and previews; None in all processes but the first.
        memory: Repeats a step in less memory where the device is full.
        step_metrics: Adds norms, times and memory to the metrics of a step.
        generate: Generates the previews of a step; every process calls it.
        replanned: The schedule of a run that was made longer.
        checkpoint_folder: The checkpoints of the run that is resumed; None for a new run.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        steps: int,
        state: TrainState,
        plan: StepPlan,
        micro_batch_parts: MicroBatchParts,
        processes: Processes,
        observer: Observer,
        parameters: Sequence[torch.nn.Parameter] | None = None,
        recorder: Recorder | None = None,
        memory: MemoryManager | None = None,
        clock: StepClock | None = None,
        step_metrics: StepMetrics | None = None,
        validation: Validation | None = None,
        generate: Callable[[int], None] | None = None,
        replanned: ReplannedSchedule | None = None,
        checkpoint_folder: Path | None = None,
    ) -> None:
        self.config, self.training, self.steps = config, config.training, steps
        self.state, self.plan, self.micro_batch_parts = state, plan, micro_batch_parts
        self.processes, self.observer = processes, observer
        self.parameters = state.adapter.parameters() if parameters is None else parameters
        self.recorder, self.memory = recorder, memory
        self.clock = clock or StepClock(processes.device)
        self.step_metrics, self.validation, self.generate = step_metrics, validation, generate
        self.schedule = make_schedule(self.training.schedule, steps, replanned)
        # The first process requests a due checkpoint from all of them.
        self._checkpoint_clock = CheckpointClock(
            self.training.checkpoint_minutes if recorder else 0.0
        )
        self._checkpoint_folder = checkpoint_folder
        self._initial_checkpoint = self._initial_state() if self.training.recovery.returns else None

    def train(self) -> tuple[str, int]:
        """Train to the last step; restore a checkpoint as often as the run file allows.

        Returns:
            ``done`` or ``cancelled``, and the last step made.

        Raises:
            NonFiniteError: When too many steps in a row are not finite and no checkpoint can be
                restored. The state before them is saved.
        """
        while True:
            try:
                return self._train_steps()
            except RestoreSignal as signal:
                step, target = signal.step, signal.target
            # Outside the handler: the frames of the signal keep the graph of the step alive.
            self.restore_checkpoint(step, target)

    def _train_steps(self) -> tuple[str, int]:
        """Train from the current step to the last one."""
        if ended := self._before_first_step():
            return ended, self.state.step
        for step in range(self.state.step + 1, self.steps + 1):
            if self.memory is not None:
                self.memory.between_steps()
            result, sample_losses, requests = self.train_step(step)
            is_last = not requests.cancel and (requests.stop or step == self.steps)
            validated = self._validate_and_record(result, sample_losses, is_last=is_last)
            requests = requests.with_stop(validated.stop)
            saved = self._checkpoint_is_due(step, requests)
            if saved:
                self.save_checkpoint(step)  # before the previews: they take long and may fail
            cancelled = requests.cancel or validated.cancelled
            final_previews = step == self.steps or validated.stop
            if not cancelled and self._previews_are_due(step, requests, is_final=final_previews):
                cancelled = self.preview(step)
            if step < self.steps and (cancelled or requests.stop):
                if not saved:
                    self.save_checkpoint(step)
                return "cancelled" if cancelled else "done", step
            if cancelled:
                self._tell_skipped(validated)
        return "done", self.steps

    def _tell_skipped(self, validated: ValidationResult) -> None:
        """Say what a run lacks that was cancelled in its last step, and is done all the same."""
        previews = ["Previews of it are missing."] if self.config.preview.every > 0 else []
        measures = self.validation is not None and validated.loss is None
        loss = [f"{RESUME} measures its loss on held-out images."] if measures else []
        if self.recorder is not None and (previews or loss):
            self.observer.notify(Noted(" ".join(["Cancelled in the last step.", *previews, *loss])))

    def _before_first_step(self) -> str | None:
        """Validate and preview the base of a run at step 0; the status of a run that ends here."""
        state = self.state
        if state.step and self._should_stop():
            return "done"  # it had stopped early, and was killed before it could finish
        cancelled, stop = self._any(self.observer.cancelled()), False
        if not state.step:
            cancelled = cancelled or self.validate(0).cancelled
            if not cancelled and self.config.preview.every > 0:
                cancelled = self.preview(0)
            if cancelled:
                self.save_checkpoint(0)
        elif not cancelled and state.best.measured_step < state.step:
            # The run was stopped before the validation of its last step. It is made up for here, so
            # that best step, early stopping and metrics do not depend on where the run was stopped.
            validated = self.validate(state.step, is_last=state.step >= self.steps)
            if self._is_best(state.step):
                self.save_checkpoint(state.step)  # the same one again, which marks it as the best
            cancelled, stop = validated.cancelled, validated.stop
        if cancelled:
            return "cancelled"
        return "done" if stop else None

    def train_step(self, step: int) -> tuple[StepResult, Sequence[SampleLoss], RunRequests]:
        """Compute the gradients of a step, clip them and update the weights.

        A step whose loss or gradient is not finite is skipped: it changes no weight.

        Args:
            step: From 1. It decides the learning rate, the samples and their noise.

        Returns:
            The result, the losses of the step's samples, and the requests of all processes.

        Raises:
            RestoreSignal: When too many steps in a row are not finite.
            NonFiniteError: The same, when no checkpoint can be restored.
        """
        started = time.perf_counter()
        optimizer, samples = self.state.optimizer, self.plan.samples(step)
        learning_rate = self.learning_rate(step)
        set_learning_rate(optimizer, learning_rate)
        self.clock.start()
        if self.memory is None:
            micro_results = self.compute_gradients(step, samples)
        else:
            micro_results = self.memory.retry_when_full(
                step, lambda: self.compute_gradients(step, samples)
            )
        self.clock.mark_computed()
        self.processes.sum_gradients(self.parameters)
        norm = clip_gradients(self.parameters, self.training.max_grad_norm)
        # With one process, the only place where a step waits for the device.
        times = self.plan.times_per_sample
        numbers = read_numbers(self.processes, micro_results, norm, samples=samples, times=times)
        self.clock.mark_numbers_read()
        finite = math.isfinite(numbers.loss + numbers.norm)
        if not finite:
            forget_gradients(self.parameters)
            what = "a gradient" if math.isfinite(numbers.loss) else "the loss"
            self._skip_or_restore(step, what, micro_results)
        # Agreed on before the update, so that no process waits for the update of another one.
        requests = self.requests()
        if finite:
            update(optimizer, self.parameters)
            forget_gradients(self.parameters)
            self._after_update(step, numbers.sample_losses)
        result = StepResult(
            step=step,
            epoch=self.plan.batches.epoch(step),
            loss=numbers.loss if finite else math.nan,
            learning_rate=learning_rate,
            grad_norm=numbers.norm if finite else math.nan,
            sigma_mean=numbers.sigma_sum / samples,
            step_seconds=time.perf_counter() - started,
            time=time.time(),
            skipped=not finite,
        )
        return result, numbers.sample_losses if finite else (), requests

    def compute_gradients(self, step: int, samples: int) -> list[MicroBatchResult]:
        """Run this process's micro-batches of a step forward and backward.

        Args:
            step: From 1.
            samples: Number of samples in the step, in all processes. The loss is their mean.
        """
        # The micro-batches of a slider flip the sign of the adapter's strength.
        slider, adapter = self.config.dataset.slider.is_on, self.state.adapter
        with restoring_strength(adapter) if slider else contextlib.nullcontext():
            return [
                forward_and_backward(
                    self.micro_batch_parts(step, micro), samples, self.processes.backward
                )
                for micro in self.plan.micro_batches(step)
            ]

    def learning_rate(self, step: int) -> float:
        """Base learning rate of a step, which each restored checkpoint has lowered."""
        share = rate_share(self.training.recovery, self.state.restores)
        return self.training.optimizer.learning_rate * self.schedule(step) * share

    def validate(self, step: int, *, is_last: bool = False) -> ValidationResult:
        """Where it is due, compute and record the loss on held-out images, and update the best.

        Args:
            is_last: Whether the run ends with this step, after which validation is always due.

        Returns:
            The losses, None where validation is not due.
        """
        every = self.config.dataset.validation.every
        if self.validation is None or (step % every and not is_last):
            return ValidationResult()
        # With the weights that previews are generated with.
        with self.state.use_weights(self.training.ema.previews):
            validated = self.validation(step)
        if validated.loss is None:
            return validated
        if self.recorder is not None:
            self.recorder.record_validation(step, validated.loss, validated.trained_loss)
        best = self.state.best
        if step == 0:
            best.set_base(validated.loss)
        else:
            best.add(step, validated.loss, scheduled=step % every == 0)
        return replace(validated, stop=step > 0 and self._should_stop())

    def _should_stop(self) -> bool:
        """Whether the run gets no better, or is too far behind the other trials of its sweep.

        All processes come to the same answer: they have the same losses, and a sweep has one.
        """
        stopped = isinstance(self.observer, StoppingObserver) and self.observer.should_stop()
        return stopped or self.state.best.stop_due(self.training.early_stop)

    def save_checkpoint(self, step: int) -> None:
        """Save the state after a step. Where the disk is full, `requests` asks for it again.

        Raises:
            RestoreSignal: When a weight is not finite.
            NonFiniteError: The same, when no older checkpoint can be restored.
        """
        found: NonFiniteError | None = None
        try:
            if self.recorder is not None:
                self.recorder.save(step)
        except NonFiniteError as error:
            found = error
        # Only the first process checks the weights.
        if self._any(found is not None):
            # The state itself is bad, so that the step after it counts as the first that fails.
            self._signal_restore(step + 1, first_bad_step=step + 1)
            remedy = self._save_last(step + 1, first_bad_step=step + 1)
            if found is None:
                place = f"the first process found what is not finite at step {step}"
                raise NonFiniteError(place, "finite weights and optimizer state", remedy)
            raise NonFiniteError(found.found, found.expected, remedy) from found
        self._checkpoint_clock.saved()

    def preview(self, step: int) -> bool:
        """Generate the preview images of a step; whether the run was cancelled meanwhile."""
        if self.generate is not None:
            self.generate(step)
        # The others wait here until the first process has its previews.
        return self._any(self.observer.cancelled())

    def restore_checkpoint(self, step: int, target: int) -> None:
        """Restore an older state, and continue with a lower learning rate.

        The next steps have the same samples, noise and noise levels as before. Only the weights and
        the learning rate differ.

        Args:
            step: The step that is not finite.
            target: The step of the checkpoint; 0 for the initial state, which a new run has in RAM
                and a resumed one in a folder.
        """
        state, config, restores = self.state, self.config, self.state.restores + 1
        checkpoint = self._initial_checkpoint
        if target or checkpoint is None:
            assert self._checkpoint_folder is not None, "`_newest_restorable` has found the folder"
            _, checkpoint = read_whole_checkpoint(
                self._checkpoint_folder / f"{target:06d}", user_named=False
            )
        settings = self.training.optimizer
        # A new optimizer, into which the moments of the checkpoint are loaded.
        state.optimizer = make_optimizer(settings, parameter_groups(state.adapter, settings))
        if self.memory is not None:
            self.memory.restart(state.optimizer)  # frees the old one before the new one is filled
        self.clock.restart()
        begins_anew = state.restore(checkpoint, settings)
        state.restores = restores
        replanned = replan_schedule(config, checkpoint) if target else None
        self.schedule = make_schedule(self.training.schedule, self.steps, replanned)
        if self.recorder is not None:
            self.recorder.record_restore(step, state.step, restores)
            note = restore_note(self.training.recovery, step, target, restores)
            note = f"{note} {begins_anew}".rstrip()
            self.observer.notify(CheckpointRestored(note, state.step))
            self.recorder.reopen(replanned)

    def _after_update(self, step: int, sample_losses: Sequence[SampleLoss]) -> None:
        """Update weight averages, norms, the learned weighting and the ledger after a step."""
        self.state.after_update()
        self.clock.mark_updated()
        if self.step_metrics is not None:
            self.step_metrics.measure_norms(step)
        if self.state.learned_weighting is not None:
            self.state.learned_weighting.learn((each.sigma, each.error) for each in sample_losses)
        if self.state.ledger is not None:
            self.state.ledger.add(step, indices_by_place(self.plan.batches, step), sample_losses)

    def _validate_and_record(
        self, result: StepResult, sample_losses: Sequence[SampleLoss], *, is_last: bool
    ) -> ValidationResult:
        """Validate after a step, then record the step, also when validation fails."""
        recorder, step = self.recorder, result.step
        with recorder.saved_on_failure(step) if recorder else contextlib.nullcontext():
            try:
                validated = self.validate(step, is_last=is_last)
            except Exception:
                # The checkpoint that is saved on the way out includes this step.
                self.finish_step(result, sample_losses)
                raise
        self.finish_step(validated.add_to(result), sample_losses)
        return validated

    def finish_step(self, result: StepResult, sample_losses: Sequence[SampleLoss]) -> None:
        """Count a step as made, and record it with the losses of its samples."""
        self.state.step = result.step
        in_a_row = self.state.skipped_in_a_row
        self.state.skipped_in_a_row = in_a_row + 1 if result.skipped else 0
        if self.step_metrics is not None:
            result = self.step_metrics.add_to(result, sample_losses)
        if self.recorder is not None:
            self.recorder.record(result)

    def _checkpoint_is_due(self, step: int, requests: RunRequests) -> bool:
        """Whether a checkpoint is saved after a step."""
        every = self.training.checkpoint_every
        wanted = requests.ends_run or requests.save
        return step == self.steps or wanted or self._is_best(step) or _is_due(step, every)

    def _previews_are_due(self, step: int, requests: RunRequests, *, is_final: bool) -> bool:
        """Whether previews are generated after a step; a run that ends by itself ends with some."""
        every = self.config.preview.every
        return requests.preview or _is_due(step, every) or (every > 0 and is_final)

    def _is_best(self, step: int) -> bool:
        return self.state.best.step == step

    def requests(self) -> RunRequests:
        """The requests of all observers, and that of a checkpoint that is due."""
        requests = self.observer.requests()
        if self.recorder is not None and self.recorder.retry_due():
            requests = requests._replace(save=True)
        requests = self._checkpoint_clock.asking(requests)
        counts = self.processes.sum_numbers([float(each) for each in requests])
        return RunRequests(*(count > 0 for count in counts))

    def _skip_or_restore(
        self, step: int, what: str, micro_results: Sequence[MicroBatchResult]
    ) -> None:
        """Skip a step that is not finite; after too many in a row, restore a checkpoint or end."""
        skips, in_a_row = self.training.recovery.skips, self.state.skipped_in_a_row + 1
        first_bad_step = step - in_a_row + 1
        all_steps_skipped = first_bad_step == 1 and step == self.steps
        if in_a_row <= skips and not all_steps_skipped:
            count = f"{in_a_row} in a row, {skips} at most"
            if self.recorder is not None:
                line = f"Step {step} is skipped: {what} is not finite ({count})."
                self.observer.notify(Warned(line))
            return
        self._signal_restore(step, first_bad_step)
        remedy = self._save_last(step, first_bad_step)
        raise non_finite_error(
            step, what, micro_results, remedy=remedy, place=self._broken_place(step)
        )

    def _signal_restore(self, step: int, first_bad_step: int) -> None:
        """Leave the training loop with `RestoreSignal` where a checkpoint can be restored.

        Args:
            step: The step that is not finite.
            first_bad_step: The first of the steps in a row that are not finite.

        Raises:
            RestoreSignal: With the checkpoint to restore.
        """
        if self.state.restores < self.training.recovery.returns:
            target = self._newest_restorable(first_bad_step)
            if target is not None:
                raise RestoreSignal(step, target)

    def _save_last(self, step: int, first_bad_step: int) -> str:
        """Save the state before the failed step; the remedy of the error that ends the run."""
        if self.recorder is None:
            return "See the message of the first process."
        return self.recorder.save_before_failed_step(step, first_bad_step)

    def _newest_restorable(self, first_bad_step: int) -> int | None:
        """Step of the newest checkpoint that can be restored; 0 is the initial state.

        The first process looks for it, and the others add nothing to what it found. The state right
        before step `first_bad_step` is passed over, because its next step is the one that failed.
        """
        # Only the first process knows the folder; the sum tells the others.
        found = [0.0, 0.0, 0.0]
        if self.recorder is not None:
            folder = self.recorder.folder
            step = checkpoint_to_restore(folder.checkpoints, first_bad_step)
            if step is None and self._initial_checkpoint is not None and first_bad_step > 1:
                step = 0
            found = [float(step is not None), float(step or 0), float(version_number(folder.path))]
        is_found, step, version = map(int, self.processes.sum_numbers(found))
        if self._checkpoint_folder is None:
            output = self.config.output
            self._checkpoint_folder = Path(output.dir) / output.name / f"v{version}" / "checkpoints"
        return step if is_found else None

    def _initial_state(self) -> Checkpoint | None:
        """Copy the initial state of a new run to RAM, because no checkpoint holds it."""
        if self.state.step:
            return None
        tensors = {name: each.to("cpu", copy=True) for name, each in self.state.tensors().items()}
        # The section that decides whether the optimizer takes its stored state.
        optimizer = self.training.optimizer.model_dump(mode="json")
        settings = {f"training.optimizer.{name}": value for name, value in optimizer.items()}
        return Checkpoint(0, settings, tensors)

    def _broken_place(self, step: int) -> str:
        """Compute a step again, and name the layer whose output or gradient is not finite."""
        if self.processes.sharded:
            return ""  # a process that runs out of memory would leave the others waiting

        def compute(gradients: bool) -> list[MicroBatchResult]:
            parts: list[MicroBatchResult] = []
            for micro in self.plan.micro_batches(step):
                for part in self.micro_batch_parts(step, micro):
                    parts.append(part)
                    if gradients:
                        self.processes.backward(part.loss)
            return parts

        with restoring_strength(self.state.adapter):
            return broken_place(self.state.adapter, compute, self.processes)

    def _any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.processes.sum_numbers([float(flag)])[0] > 0


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
