"""Observers of the command line: they show a run's events and carry Ctrl-C to the run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..training.observer import (
    CacheProgress,
    CheckpointSaved,
    Event,
    Observer,
    PreviewDone,
    RunFinished,
    RunStarted,
    StepDone,
    Warned,
    Wishes,
)
from .console import overwrite_line, show, show_json
from .progress import LineRate, Pace, bar_text, result_text, summary_text

_STOPPING = b"\nStopping after this step; the state is saved. Once more stops at once.\n"


class CancelSwitch:
    """Turned on by the first Ctrl-C or SIGTERM; the second ends the command at once."""

    def __init__(self) -> None:
        self.on = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.on:
            raise KeyboardInterrupt
        self.on = True
        # A print may be interrupted by this very signal, and the streams are not reentrant.
        os.write(2, _STOPPING)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to the signals, and give them back afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class JsonObserver:
    """Prints every event as one JSON object."""

    def __init__(self, wishes: Callable[[], Wishes]) -> None:
        self.wishes = wishes

    def cancelled(self) -> bool:
        """Whether Ctrl-C or SIGTERM came."""
        return self.wishes().cancel

    def notify(self, event: Event) -> None:
        """Print the event."""
        show_json(event_record(event))


class TextObserver:
    """Prints events for a person.

    Args:
        wishes: What the run is asked for.
        terminal: Draw a bar that moves; otherwise print plain lines at a rate that suits a log.
    """

    def __init__(self, wishes: Callable[[], Wishes], *, terminal: bool) -> None:
        self.wishes = wishes
        self._terminal = terminal
        self._pace = Pace()
        self._rates: defaultdict[str, LineRate] = defaultdict(LineRate)
        self._bar_shown = False

    def notify(self, event: Event) -> None:
        """Print the event."""
        if isinstance(event, StepDone):
            text = self._pace.step_text(event.result, event.steps)
            self._progress("step", event.result.step, event.steps, text)
        elif isinstance(event, CacheProgress):
            self._progress("cached", event.done, event.total, event.what)
        else:
            self._line(event_text(event))

    def cancelled(self) -> bool:
        """Whether Ctrl-C or SIGTERM came."""
        return self.wishes().cancel

    def close(self) -> None:
        """Leave the terminal on a fresh line."""
        if self._bar_shown:
            show("")
            self._bar_shown = False

    def _progress(self, what: str, done: int, total: int, text: str) -> None:
        if self._terminal:
            overwrite_line(bar_text(done, total, text, shutil.get_terminal_size().columns))
            self._bar_shown = True
            if done >= total:
                self.close()
        elif self._rates[what].due(done, total):
            show(f"{what} {done}/{total}: {text}")

    def _line(self, text: str) -> None:
        if self._bar_shown:
            overwrite_line("")
            self._bar_shown = False
        show(text)


class _OtherProcess:
    """Observer of every process but the first: silent, but it stops with the others."""

    def __init__(self, wishes: Callable[[], Wishes]) -> None:
        self.wishes = wishes

    def cancelled(self) -> bool:
        """Whether Ctrl-C or SIGTERM came."""
        return self.wishes().cancel

    def notify(self, event: Event) -> None:
        """Ignore the event."""


@contextlib.contextmanager
def watching(*, as_json: bool) -> Iterator[Observer]:
    """Show a run's events and let Ctrl-C and SIGTERM cancel it.

    Args:
        as_json: One JSON object a line instead of text.

    Yields:
        The observer for the run.
    """
    switch = CancelSwitch()

    def wishes() -> Wishes:
        return Wishes(cancel=switch.on)

    with switch.installed():
        if os.environ.get("RANK", "0") != "0":
            yield _OtherProcess(wishes)
        elif as_json:
            yield JsonObserver(wishes)
        else:
            observer = TextObserver(wishes, terminal=sys.stdout.isatty())
            try:
                yield observer
            finally:
                observer.close()


def event_record(event: Event) -> dict[str, Any]:
    """An event as a JSON object: its name and its fields."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return {"event": name, **dataclasses.asdict(event)}


def event_text(event: Event) -> str:
    """An event other than progress, for a person."""
    if isinstance(event, RunStarted):
        return summary_text(event.summary)
    if isinstance(event, PreviewDone):
        return f"preview of step {event.step}: {event.path}"
    if isinstance(event, CheckpointSaved):
        return f"checkpoint of step {event.step}: {event.folder}"
    if isinstance(event, RunFinished):
        return result_text(event.result)
    return f"Note: {event.message}" if isinstance(event, Warned) else str(event)
