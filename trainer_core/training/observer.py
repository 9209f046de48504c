"""What a run tells the outside, and how the outside stops it.

The command line draws a progress bar from these events, a node draws a panel, a test collects them.
The run itself knows nothing of any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..types import RunResult, RunSummary, StepResult


@dataclass(frozen=True, slots=True)
class CacheProgress:
    """Pictures and captions are being encoded; `done` of `total` samples are ready."""

    done: int
    total: int


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
class PreviewDone:
    """A preview picture was written; `step` 0 is the base before training."""

    step: int
    prompt_index: int
    path: Path


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A resumable checkpoint is whole on disk."""

    step: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know, in one line; the run goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ended by itself or was cancelled."""

    result: RunResult


Event = CacheProgress | RunStarted | StepDone | PreviewDone | CheckpointSaved | Warned | RunFinished


class Observer(Protocol):
    """Hears a run's events and may cancel it."""

    def notify(self, event: Event) -> None:
        """Take note of an event; called in the run's own thread, so it must return quickly."""

    def cancelled(self) -> bool:
        """Whether the run should finish its step, save a checkpoint and end."""
        ...


class SilentObserver:
    """Hears nothing and never cancels."""

    def notify(self, event: Event) -> None:
        """Ignore the event."""

    def cancelled(self) -> bool:
        """Never."""
        return False
