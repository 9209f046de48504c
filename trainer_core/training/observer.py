"""`Observer`: a run's events to the outside; requests to save, preview or stop from there.

The command line draws a progress bar from these events, a node draws a panel, a test collects them.
The run itself knows nothing of any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from ..types import RunResult, RunSummary, StepResult

TENSORBOARD_ABSENT = (
    "TensorBoard is not installed, so only metrics.jsonl is written "
    '(pip install "adapter-trainer[tensorboard]").'
)


@dataclass(frozen=True, slots=True)
class CacheProgress:
    """Something is made once and cached before the first step; `done` of `total` are ready."""

    done: int
    total: int
    what: str = "images and captions"


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One way to keep a run in memory.

    Attributes:
        master: Where swapped blocks lie; ``none`` where there are none.
        checkpoint_inputs: Where inputs of checkpointed blocks wait: ``device`` or ``ram``.
        device_bytes: Of the device, at the peak.
        seconds: Predicted for a step; 0 where it is not known.
    """

    base_format: str
    blocks_to_swap: int
    master: str
    blocks_to_checkpoint: int
    checkpoint_inputs: str
    device_bytes: int
    ram_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MemoryPlanned:
    """Where the run keeps what, before anything is loaded.

    Attributes:
        rows: The plan that is taken, and the next best ones.
        device_free: Bytes of the device that were free.
        ram_free: Bytes of RAM that were.
        blocks: How many the base has; 0 where it is not said.
    """

    rows: tuple[PlanRow, ...]
    device_free: int
    ram_free: int
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Everything is loaded; the first step comes next."""

    summary: RunSummary


@dataclass(frozen=True, slots=True)
class StepDone:
    """One optimizer step of `steps` was made."""

    result: StepResult
    steps: int


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """The loss on held-out images was measured; `step` 0 is before training.

    `trained` is that of as many trained images, measured alike; None where there are none.
    """

    step: int
    loss: float
    trained: float | None = None


@dataclass(frozen=True, slots=True)
class PreviewDone:
    """A preview image was written; `step` 0 is the base before training."""

    step: int
    prompt_index: int
    path: Path


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A resumable checkpoint is whole on disk; `dropped` are the steps of those that gave way."""

    step: int
    folder: Path
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know, in one line; the run goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class Noted(Warned):
    """As `Warned`, but nobody has to do anything about it."""


CHECKPOINT = "checkpoint"
"""What `Advised.setting` is where the remedy is the adapter of an earlier step."""


@dataclass(frozen=True, slots=True)
class Advised(Warned):
    """A fault of the run that has a remedy; told once in a run, also of one that goes on.

    Attributes:
        name: Of the fault, such as ``hardly_moves``.
        setting: YAML path of what is to be another for a next run, or `CHECKPOINT`; empty
            where the message has all there is to do.
        value: What it is to be; of a checkpoint its step.
    """

    name: str
    step: int
    setting: str
    value: float


@dataclass(frozen=True, slots=True)
class CheckpointRestored(Warned):
    """The run goes on from an older state; `to` is how many steps that has made."""

    to: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ended by itself or was cancelled."""

    result: RunResult


Event = (
    CacheProgress
    | MemoryPlanned
    | RunStarted
    | StepDone
    | ValidationDone
    | PreviewDone
    | CheckpointSaved
    | Warned
    | RunFinished
)
"""`Noted`, `Advised` and `CheckpointRestored` are kinds of `Warned`."""


class RunRequests(NamedTuple):
    """What the outside asks of a run; heard once a step.

    Attributes:
        cancel: Finish the step, save a checkpoint, and end without an adapter.
        stop: Finish the step, save a checkpoint, export the adapter and end as done.
        save: Save a checkpoint after the step.
        preview: Sample the preview images after the step.
    """

    cancel: bool = False
    stop: bool = False
    save: bool = False
    preview: bool = False

    def with_stop(self, stop: bool) -> RunRequests:
        """The same, and `stop` where the run itself wants to end."""
        return self._replace(stop=True) if stop and not self.cancel else self

    @property
    def ends_run(self) -> bool:
        """Whether this is the last step."""
        return self.cancel or self.stop


class Observer(Protocol):
    """Hears a run's events and may ask something of it."""

    def notify(self, event: Event) -> None:
        """Take note of an event; called in the run's own thread, so it must return quickly."""

    def requests(self) -> RunRequests:
        """What the run should do after this step; asked once in every step."""
        return RunRequests()

    def cancelled(self) -> bool:
        """Whether `requests` asks, or will ask, for an end without an adapter.

        Asked often while images are generated, which may take longer than many steps; asking must
        not change the answer.
        """
        return False


@runtime_checkable
class StopCause(Protocol):
    """An observer that can say what made it ask for an end.

    Attributes:
        stopped_by: Such as ``SIGTERM``; None as long as nothing did.
    """

    stopped_by: str | None


@runtime_checkable
class StoppingObserver(Protocol):
    """An observer that compares the run with others and may end it at a measurement."""

    def should_stop(self) -> bool:
        """Whether the run ends here with its adapter.

        Asked after each measurement on held-out images, and when a run goes on. The answer may
        depend on the losses up to there alone: a run that was killed asks again.
        """
        ...


class RunCancelledError(Exception):
    """A run was asked to end before its first step; what it has cached stays.

    `train` gives the result of a cancelled run then.
    """


def report_progress(
    observer: Observer, what: str, done: int, total: int, *, may_cancel: bool = True
) -> None:
    """Tell how far something is that is made before the first step, or end where that is asked.

    Args:
        done: Parts that are on the disk.

    Raises:
        RunCancelledError: When the observer has cancelled, and there is more to do.
    """
    observer.notify(CacheProgress(done, total, what))
    if may_cancel and done < total and observer.cancelled():
        raise RunCancelledError


class SilentObserver(Observer):
    """Hears nothing and asks for nothing."""
