"""`Trainer`: the loop of a run. It computes steps, and saves, measures and shows what they give."""

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
from ..errors import NonFiniteError
from ..types import StepResult
from .broken_place import broken_place
from .checkpoint import Checkpoint, read_whole_checkpoint
from .checkpoint_rules import CheckpointClock
from .checkpoint_search import last_before
from .gradients import clip_gradients, forget_gradients, go_backward
from .ledger import indices_by_place
from .longer_run import PlannedAnew, planned_anew
from .measurements import Measurements
from .observer import Observer, RunRequests, Warned, WentBack
from .optimizers import make_optimizer, set_learning_rate, update
from .out_of_memory import DeviceRoom
from .processes import Processes
from .recorder import Recorder
from .recovery import RestoreError, rate_share, restore_note
from .run_folder import version_number
from .schedules import make_schedule
from .slider import kept_strength
from .state import TrainState
from .step import MicroStep, SampleError, non_finite_error, read_numbers
from .step_clock import StepClock
from .step_plan import StepPlan
from .validation import Measured, Validation

Compute = Callable[[int, int], Iterable[MicroStep]]
"""A step, from 1, and a micro-batch of it, from 0, to its parts: one, or several where the device
has no room for all samples. The gradients of a part are computed before the next one."""


class Trainer:
    """Trains an adapter to the end of its run.

    Every process of a run has a trainer, and all make the same calls at the same steps. The first
    one alone has a recorder, which writes files and tells the observer of steps.

    Args:
        config: The run file.
        steps: Length of the run.
        state: Adapter, optimizer, and how many steps were made.
        plan: The micro-batches of each step.
        compute: Computes a micro-batch.
        processes: Those that share each step.
        observer: Asks for an end, a checkpoint or previews.
        parameters: What is trained; unset: those of the adapter.
        recorder: Writes steps, checkpoints and previews.
        room: Computes a step again in less memory where the device is full.
        clock: Takes the time of a step's parts.
        measurements: What is written of a step besides its loss.
        validation: Measures the loss on held-out images.
        generate: Generates the previews of a step; every process calls it.
        anew: How the learning rate goes on of a run that was made longer.
        checkpoints: Folder of the checkpoint that the run goes on from.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        steps: int,
        state: TrainState,
        plan: StepPlan,
        compute: Compute,
        processes: Processes,
        observer: Observer,
        parameters: Sequence[torch.nn.Parameter] | None = None,
        recorder: Recorder | None = None,
        room: DeviceRoom | None = None,
        clock: StepClock | None = None,
        measurements: Measurements | None = None,
        validation: Validation | None = None,
        generate: Callable[[int], None] | None = None,
        anew: PlannedAnew | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        self.config, self.training, self.steps = config, config.training, steps
        self.state, self.plan, self.compute = state, plan, compute
        self.processes, self.observer = processes, observer
        self.parameters = state.adapter.parameters() if parameters is None else parameters
        self.recorder, self.room = recorder, room
        self.clock = clock or StepClock(processes.device)
        self.measurements, self.validation, self.generate = measurements, validation, generate
        self.schedule = make_schedule(self.training.schedule, steps, anew)
        # The others hear of a due checkpoint with the first process's requests.
        self._due = CheckpointClock(self.training.checkpoint_minutes if recorder else 0.0)
        self._checkpoints = checkpoints
        self._initial = self._initial_state() if self.training.recovery.returns else None

    def train(self) -> tuple[str, int]:
        """Train to the last step; restore a checkpoint as often as the run file allows.

        Returns:
            ``done`` or ``cancelled``, and the last step made.

        Raises:
            NonFiniteError: When the numbers of too many steps were not finite. The state before
                them is saved.
        """
        while True:
            try:
                return self._train_on()
            except RestoreError as error:
                step, target = error.step, error.target
            # Behind the handler: the error's frames hold the graph of the step.
            self.restore_checkpoint(step, target)

    def _train_on(self) -> tuple[str, int]:
        """Train from the state's step on."""
        if ended := self._before_first_step():
            return ended, self.state.step
        for step in range(self.state.step + 1, self.steps + 1):
            if self.room is not None:
                self.room.between_steps()
            result, errors, requests = self.train_step(step)
            ends = not requests.cancel and (requests.stop or step == self.steps)
            measured = self._measure_and_record(result, errors, ends=ends)
            requests = requests.stopping(measured.stop)
            saved = self._saves(step, requests)
            if saved:
                self.save_checkpoint(step)  # before the previews: they take long and may fail
            cancelled = requests.cancel or measured.cancelled
            shown_at_end = step == self.steps or measured.stop
            if not cancelled and self._shows(step, requests, ends=shown_at_end):
                cancelled = self.preview(step)
            if step < self.steps and (cancelled or requests.stop):
                if not saved:
                    self.save_checkpoint(step)
                return "cancelled" if cancelled else "done", step
        return "done", self.steps

    def _before_first_step(self) -> str:
        """Measure and show the base of a new run; how the run ends, where it ends by that."""
        state = self.state
        if state.best.ends(self.training.early_stop):
            return "done"  # it had ended, and was killed before it could say so
        cancelled, stop = self._any(self.observer.cancelled()), False
        if not state.step:
            cancelled = cancelled or self.validate(0).cancelled
            if not cancelled and self.config.preview.every > 0:
                cancelled = self.preview(0)
            if cancelled:
                self.save_checkpoint(0)
        elif not cancelled and state.best.measured < state.step:
            # A run that was stopped before it measured its last step measures now, so that best
            # step, early stopping and metrics do not depend on where it was stopped.
            measured = self.validate(state.step, ends=state.step >= self.steps)
            if self._is_best(state.step):
                self.save_checkpoint(state.step)  # it is there, and is marked
            cancelled, stop = measured.cancelled, measured.stop
        if cancelled:
            return "cancelled"
        return "done" if stop else ""

    def train_step(self, step: int) -> tuple[StepResult, Sequence[SampleError], RunRequests]:
        """Make a step: compute the gradients, clip them and update the weights.

        A step whose loss or gradient is not finite changes no weight.

        Args:
            step: From 1; learning rate, samples and noise follow from it.

        Returns:
            The step, and what its samples were off by.

        Raises:
            RestoreError: When too many steps in a row were not finite.
            NonFiniteError: As `RestoreError`, when the run may not go on.
        """
        started = time.perf_counter()
        optimizer, samples = self.state.optimizer, self.plan.samples(step)
        learning_rate = self.learning_rate(step)
        set_learning_rate(optimizer, learning_rate)
        self.clock.start()
        if self.room is None:
            micro_steps = self.compute_gradients(step, samples)
        else:
            micro_steps = self.room.compute(step, lambda: self.compute_gradients(step, samples))
        self.clock.computed()
        self.processes.sum_gradients(self.parameters)
        norm = clip_gradients(self.parameters, self.training.max_grad_norm)
        # The one place where a step waits for the device.
        numbers = read_numbers(self.processes, micro_steps, norm, samples, self.plan.times)
        self.clock.mark()
        finite = math.isfinite(numbers.loss + numbers.norm)
        if not finite:
            forget_gradients(self.parameters)
            what = "a gradient" if math.isfinite(numbers.loss) else "the loss"
            self._skip_or_restore(step, what, micro_steps)
        # Before the update: several processes would wait here until the device has made it.
        requests = self.requests()
        if finite:
            update(optimizer, self.parameters)
            forget_gradients(self.parameters)
            self._updated(step, numbers.seen)
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
        return result, numbers.seen if finite else (), requests

    def compute_gradients(self, step: int, samples: int) -> list[MicroStep]:
        """Run this process's micro-batches of a step forward and backward.

        Args:
            step: From 1.
            samples: Of the whole step, over whose losses the mean is taken.

        Returns:
            What each micro-batch gave.
        """
        # A slider's micro-batches turn the adapter's strength over.
        slider, adapter = self.config.dataset.slider.is_on, self.state.adapter
        with kept_strength(adapter) if slider else contextlib.nullcontext():
            return [
                go_backward(self.compute(step, micro), samples, self.processes.backward)
                for micro in self.plan.micro_batches(step)
            ]

    def learning_rate(self, step: int) -> float:
        """The highest learning rate of a step; each restored checkpoint has lowered it."""
        share = rate_share(self.training.recovery, self.state.returns)
        return self.training.optimizer.learning_rate * self.schedule(step) * share

    def validate(self, step: int, *, ends: bool = False) -> Measured:
        """Measure the loss on held-out images where it is due.

        Args:
            step: Steps made.
            ends: Whether the run ends there.

        Returns:
            Nothing but None and False where it is not due.
        """
        every = self.config.dataset.validation.every
        if self.validation is None or (step % every and not ends):
            return Measured()
        # What previews show is measured.
        with self.state.shown(self.training.ema.previews):
            measured = self.validation(step)
        if measured.loss is None:
            return measured
        if self.recorder is not None:
            self.recorder.measured(step, measured.loss, measured.trained)
        best = self.state.best
        if step == 0:
            best.take_base(measured.loss)
        else:
            best.take(step, measured.loss, regular=step % every == 0)
        return replace(measured, stop=best.ends(self.training.early_stop))

    def save_checkpoint(self, step: int) -> None:
        """Save the state after a step.

        Raises:
            RestoreError: When a weight is not finite and an older checkpoint is to be restored.
            NonFiniteError: When a weight is not finite and the run is to end.
        """
        found: NonFiniteError | None = None
        try:
            if self.recorder is not None:
                self.recorder.save(step)
        except NonFiniteError as error:
            found = error
        # The first process alone looks at the weights.
        if self._any(found is not None):
            remedy = self._restore_or_end(step + 1, first=step + 1)
            if found is None:
                place = f"the first process found what is not finite at step {step}"
                raise NonFiniteError(place, "finite weights and optimizer state", remedy)
            raise NonFiniteError(found.found, found.expected, remedy) from found
        self._due.saved()

    def preview(self, step: int) -> bool:
        """Generate the preview images of a step; whether the run was cancelled meanwhile."""
        if self.generate is not None:
            self.generate(step)
        # The others wait here until the first process has its previews.
        return self._any(self.observer.cancelled())

    def restore_checkpoint(self, step: int, target: int) -> None:
        """Go on from an older state, with a lower learning rate.

        Samples, noise and noise levels of the steps that follow are the same as before: weights and
        learning rate are what differs.

        Args:
            step: Whose numbers are not finite.
            target: Steps that the state has made; 0 for the start of the run.
        """
        state, config, returns = self.state, self.config, self.state.returns + 1
        checkpoint = self._initial
        if target or checkpoint is None:
            assert self._checkpoints is not None, "`_restore_or_end` has found the folder"
            _, checkpoint = read_whole_checkpoint(self._checkpoints / f"{target:06d}", named=False)
        settings = self.training.optimizer
        # A new optimizer: what the old one has learned of the steps given up does not count.
        state.optimizer = make_optimizer(settings, parameter_groups(state.adapter, settings))
        if self.room is not None:
            self.room.restart(state.optimizer)  # frees the old one before the new one is filled
        self.clock.restart()
        state.restore(checkpoint, settings)
        state.returns = returns
        anew = planned_anew(config, checkpoint) if target else None
        self.schedule = make_schedule(self.training.schedule, self.steps, anew)
        if self.recorder is not None:
            self.recorder.went_back(step, state.step, returns)
            note = restore_note(self.training.recovery, step, target, returns)
            self.observer.notify(WentBack(note, state.step))
            self.recorder.restart(anew)

    def _updated(self, step: int, errors: Sequence[SampleError]) -> None:
        """Do what follows an update of the weights."""
        self.state.updated()
        self.clock.mark()
        if self.measurements is not None:
            self.measurements.measure_norms(step)
        self.state.learn(errors)
        if self.state.ledger is not None:
            self.state.ledger.take(step, indices_by_place(self.plan.batches, step), errors)

    def _measure_and_record(
        self, result: StepResult, errors: Sequence[SampleError], *, ends: bool
    ) -> Measured:
        """Validate behind a step, and record the step however that ends."""
        recorder, step = self.recorder, result.step
        with recorder.saved_on_failure(step) if recorder else contextlib.nullcontext():
            try:
                measured = self.validate(step, ends=ends)
            except Exception:
                # The state that is saved now has made this step.
                self.record(result, errors)
                raise
        self.record(measured.written_to(result), errors)
        return measured

    def record(self, result: StepResult, errors: Sequence[SampleError]) -> None:
        """Write a step down, with what its samples were off by."""
        self.state.step = result.step
        self.state.skipped = self.state.skipped + 1 if result.skipped else 0
        if self.measurements is not None:
            result = self.measurements.complete(result, errors)
        if self.recorder is not None:
            self.recorder.record(result)

    def _saves(self, step: int, requests: RunRequests) -> bool:
        """Whether a checkpoint is saved behind a step."""
        every = self.training.checkpoint_every
        asked = requests.end or requests.save
        return step == self.steps or asked or self._is_best(step) or _is_due(step, every)

    def _shows(self, step: int, requests: RunRequests, *, ends: bool) -> bool:
        """Whether previews are generated behind a step; those of the last step always are."""
        every = self.config.preview.every
        return requests.preview or _is_due(step, every) or (every > 0 and ends)

    def _is_best(self, step: int) -> bool:
        return self.state.best.step == step

    def requests(self) -> RunRequests:
        """What any process's observer asks for, and what the first one's checkpoints need."""
        requests = self.observer.requests()
        if self.recorder is not None and self.recorder.retry_due():
            requests = requests._replace(save=True)
        requests = self._due.asking(requests)
        asked = self.processes.sum_numbers([float(each) for each in requests])
        return RunRequests(*(count > 0 for count in asked))

    def _skip_or_restore(self, step: int, what: str, micro_steps: Sequence[MicroStep]) -> None:
        """Leave out a step whose numbers are not finite; after too many in a row, do not."""
        skips, row = self.training.recovery.skips, self.state.skipped + 1
        first = step - row + 1
        trained_nothing = first == 1 and step == self.steps
        if row <= skips and not trained_nothing:
            count = f"{row} in a row, {skips} at most"
            self._warn(f"Step {step} is left out: {what} is not finite ({count}).")
            return
        remedy = self._restore_or_end(step, first)
        raise non_finite_error(step, what, micro_steps, remedy, self._broken_place(step))

    def _restore_or_end(self, step: int, first: int) -> str:
        """Have a checkpoint restored where the run may; else save what can be saved.

        Args:
            step: Whose numbers are not finite.
            first: Of those in a row.

        Returns:
            How the user can go on with a run that ends.

        Raises:
            RestoreError: With the checkpoint to restore.
        """
        if self.state.returns < self.training.recovery.returns:
            target = self._restorable(first)
            if target is not None:
                raise RestoreError(step, target)
        if self.recorder is None:
            return "The first process says how to go on."
        return self.recorder.broken(step, first)

    def _restorable(self, first: int) -> int | None:
        """Steps of the newest state that does not lead to step `first`; the first process looks."""
        found = [0.0, 0.0]
        if self.recorder is not None:
            step = last_before(self.recorder.folder.checkpoints, first)
            if step is None and self._initial is not None and first > 1:
                step = 0
            # Counted from 1, so that 0 is none.
            version = version_number(self.recorder.folder.path)
            found = [0.0 if step is None else step + 1.0, float(version)]
        step, version = self.processes.sum_numbers(found)
        if self._checkpoints is None:
            output = self.config.output
            self._checkpoints = Path(output.dir) / output.name / f"v{version:.0f}" / "checkpoints"
        return int(step) - 1 if step else None

    def _initial_state(self) -> Checkpoint | None:
        """A copy in RAM of what a new run starts with, of which there is no checkpoint."""
        if self.state.step:
            return None
        tensors = self.state.tensors().items()
        return Checkpoint(0, {}, {name: each.to("cpu", copy=True) for name, each in tensors})

    def _broken_place(self, step: int) -> str:
        """Compute a step again and find the layer in which it breaks, in words."""
        if self.processes.sharded:
            return ""  # one whose memory is full would leave the others waiting in a pass

        def compute(gradients: bool) -> list[MicroStep]:
            parts: list[MicroStep] = []
            for micro in self.plan.micro_batches(step):
                for part in self.compute(step, micro):
                    parts.append(part)
                    if gradients:
                        self.processes.backward(part.loss)
            return parts

        with kept_strength(self.state.adapter):
            return broken_place(self.state.adapter, compute, self.processes)

    def _any(self, asked: bool) -> bool:
        """Whether it holds in any process."""
        return self.processes.sum_numbers([float(asked)])[0] > 0

    def _warn(self, line: str) -> None:
        if self.recorder is not None:
            self.observer.notify(Warned(line))


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
