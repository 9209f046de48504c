"""A run goes back to a checkpoint as it would resume it, in the same process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from ..adapters.parameter_groups import parameter_groups
from ..types import RunResult
from .checkpoint import Checkpoint, read_whole_checkpoint
from .checkpoint_search import last_before
from .loaded import Loaded
from .longer_run import planned_anew
from .observer import WentBack
from .optimizers import make_optimizer
from .processes import Shares
from .recorder import Recorder
from .recovery import GoBackError, return_note
from .run_folder import version_number
from .run_loop import run_loop


class Attempts:
    """Trains a run, and goes back to a checkpoint as often as it may.

    Args:
        run: The run; every process has its own.
        shares: Which part of each step this process computes.
        checkpoints: The folder that holds the checkpoint which the run goes on from; None for a
            new run.
        may_grow: Whether blocks may be moved onto the device where there is room.

    Attributes:
        run: As it is now.
    """

    def __init__(
        self, run: Loaded, shares: Shares, checkpoints: Path | None, *, may_grow: bool
    ) -> None:
        self.run, self._shares, self._may_grow = run, shares, may_grow
        self._checkpoints = checkpoints
        self._begin = _beginning(run) if run.config.training.recovery.returns else None

    def train(
        self, recorder: Recorder | None, again: Callable[[], Recorder] | None = None
    ) -> RunResult:
        """Train to the end.

        Args:
            recorder: Writes the first attempt down; None in all processes but the first.
            again: Makes one that goes on from `TrainState.step`.

        Returns:
            Where the files are; what all but the first process return says only how it ended.
        """
        while True:
            try:
                return self._attempt(recorder)
            except GoBackError as error:
                # Another one: the frames of this one hold what the attempt had in memory.
                asked = GoBackError(error.step, error.to)
            self._go_back(asked, recorder)
            recorder = again() if again else None

    def _attempt(self, recorder: Recorder | None) -> RunResult:
        with recorder or contextlib.nullcontext():
            begun = (self.run, self._shares, recorder, self._target)
            status, step = run_loop(*begun, may_grow=self._may_grow)
            if recorder is not None:
                return recorder.finish(status, step)
        return RunResult(Path(self.run.config.output.dir), status, step, (), (), ())

    def _target(self, recorder: Recorder | None, first: int) -> int | None:
        """The steps of the state to go back to, 0 for the beginning; the first process decides."""
        found = [0.0, 0.0]
        if recorder is not None:
            step = last_before(recorder.folder.checkpoints, first)
            if step is None and self._begin is not None and first > 1:
                step = 0
            # Counted from 1, so that 0 is none.
            found = [0.0 if step is None else step + 1.0, version_number(recorder.folder.path)]
        step, version = self.run.processes.sum_numbers(found)
        if self._checkpoints is None:
            output = self.run.config.output
            self._checkpoints = Path(output.dir) / output.name / f"v{version:.0f}" / "checkpoints"
        return int(step) - 1 if step else None

    def _go_back(self, asked: GoBackError, recorder: Recorder | None) -> None:
        state, config = self.run.state, self.run.config
        returns = state.returns + 1
        checkpoint = self._begin
        if asked.to or checkpoint is None:
            assert self._checkpoints is not None, "it was asked for"
            folder = self._checkpoints / f"{asked.to:06d}"
            _, checkpoint = read_whole_checkpoint(folder, named=False)
        # What an optimizer has of the steps that are given up is not for the next ones.
        settings = config.training.optimizer
        state.optimizer = make_optimizer(settings, parameter_groups(state.adapter, settings))
        state.restore(checkpoint, settings)
        state.returns = returns
        # As a run that resumes there plans its learning rate.
        anew = planned_anew(config, checkpoint) if asked.to else None
        self.run = dataclasses.replace(self.run, anew=anew)
        if recorder is not None:
            recorder.went_back(asked.step, state.step, returns)
            said = return_note(config.training.recovery, asked, returns)
            self.run.observer.notify(WentBack(said, state.step))


def _beginning(run: Loaded) -> Checkpoint | None:
    """A copy, in RAM, of what a new run begins with; it has no checkpoint of that."""
    if run.state.step:
        return None
    tensors = run.state.tensors().items()
    return Checkpoint(0, {}, {name: each.to("cpu", copy=True) for name, each in tensors})
