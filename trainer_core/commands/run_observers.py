"""Observers of the command line: they show a run's events and carry signals to the run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..printable import gibibytes
from ..training.observer import (
    CacheProgress,
    CheckpointRestored,
    CheckpointSaved,
    Event,
    MemoryPlanned,
    Observer,
    PlanRow,
    PreviewDone,
    RunFinished,
    RunRequests,
    RunStarted,
    StepDone,
    ValidationDone,
    Warned,
)
from .console import (
    LineRate,
    Pace,
    bar_text,
    overwrite_line,
    result_text,
    show,
    show_json,
    summary_text,
)

_LAUNCHER = "TORCHELASTIC_RUN_ID"
"""Set by torch's launcher, which accelerate's uses."""

_STOPPING = b"\nStopping after this step, and saving the state. Once more stops at once.\n"


_ECHO = 5.0
"""Seconds in which a launcher's own copy of a signal arrives."""


class CancelSwitch:
    """Turned on by the first signal that asks for an end; the second ends the command at once.

    SIGUSR1, where there is one, asks for a checkpoint and previews, and the run goes on.
    A launcher of several processes sends on what it hears, and a terminal sends Ctrl-C to all of
    them besides: behind a launcher the copies of the first signal are no second one.

    Args:
        launched: Whether a launcher has started this process; unset: the environment says so.
        clock: Seconds that only grow, whatever happens to the time of day.

    Attributes:
        stopped_by: The name of the first signal, such as ``SIGTERM``; None before it.
    """

    def __init__(
        self, launched: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stopped_by: str | None = None
        self._save = False
        self._launched = _LAUNCHER in os.environ if launched is None else launched
        self._clock, self._heard = clock, 0.0

    def ask_save(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGUSR1."""
        del number, frame
        self._save = True

    def take_save(self) -> bool:
        """Whether SIGUSR1 came since the last call."""
        save, self._save = self._save, False
        return save

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        name = signal.Signals(number).name
        if self.stopped_by is not None:
            if self._launched and self._clock() - self._heard < _ECHO:
                return
            raise KeyboardInterrupt(name)
        self.stopped_by, self._heard = name, self._clock()
        # A print may be interrupted by this very signal, and the streams are not reentrant. Where
        # the terminal is gone nobody reads it.
        with contextlib.suppress(OSError):
            os.write(2, _STOPPING)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to the signals, and give them back afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = dict.fromkeys(_heard_signals(), self.handle)
        # Windows has none.
        asks = getattr(signal, "SIGUSR1", None)
        handlers |= {} if asks is None else {asks: self.ask_save}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _heard_signals() -> list[signal.Signals]:
    heard = [signal.SIGINT, signal.SIGTERM]
    # What Windows makes of Ctrl-Break, and of a group of processes that is asked to end.
    heard += [signal.Signals(each) for each in (getattr(signal, "SIGBREAK", None),) if each]
    # Windows has no terminal that hangs up; under nohup a hang-up is to be ignored.
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        heard.append(hangup)
    return heard


class _SignalObserver:
    """What the observers of the command line share: they ask for what a signal wants."""

    def __init__(self, switch: CancelSwitch) -> None:
        self._switch = switch

    @property
    def stopped_by(self) -> str | None:
        """The signal that came, or None."""
        return self._switch.stopped_by

    def requests(self) -> RunRequests:
        """An end, or a checkpoint with previews."""
        save = self._switch.take_save()
        return RunRequests(cancel=self.cancelled(), save=save, preview=save)

    def cancelled(self) -> bool:
        """Whether a signal came that wants an end."""
        return self._switch.stopped_by is not None

    def notify(self, event: Event) -> None:
        """Show an event, as long as there is a terminal to show it on."""
        try:
            self._show(event)
        except OSError:
            # A terminal that hung up takes no more text, but the run has its state to save.
            if self.stopped_by != "SIGHUP":
                raise

    def _show(self, event: Event) -> None:
        """What an observer does with an event; nothing here."""


class JsonObserver(_SignalObserver):
    """Prints every event as one JSON object."""

    def _show(self, event: Event) -> None:
        show_json(event_record(event))


class TextObserver(_SignalObserver):
    """Prints events for a person.

    Args:
        terminal: Draw a bar that moves; otherwise print plain lines at a rate that suits a log.
    """

    def __init__(self, switch: CancelSwitch, *, terminal: bool) -> None:
        super().__init__(switch)
        self._terminal = terminal
        self._pace = Pace()
        self._rates: defaultdict[str, LineRate] = defaultdict(LineRate)
        self._bar_shown = False

    def _show(self, event: Event) -> None:
        if isinstance(event, StepDone):
            text = self._pace.step_text(event.result, event.steps)
            self._progress("step", event.result.step, event.steps, text)
        elif isinstance(event, CacheProgress):
            self._progress("cached", event.done, event.total, event.what)
        else:
            self._line(event_text(event))

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


@contextlib.contextmanager
def watching(*, as_json: bool) -> Iterator[Observer]:
    """Show a run's events and let Ctrl-C, SIGTERM and a hang-up of the terminal cancel it.

    SIGUSR1 saves a checkpoint and generates the previews.

    Args:
        as_json: One JSON object a line instead of text.

    Yields:
        The observer for the run.
    """
    switch = CancelSwitch()
    with switch.installed():
        if os.environ.get("RANK", "0") != "0":
            # Silent, but it stops with the first.
            yield _SignalObserver(switch)
        elif as_json:
            yield JsonObserver(switch)
        else:
            observer = TextObserver(switch, terminal=sys.stdout.isatty())
            try:
                yield observer
            finally:
                with contextlib.suppress(OSError):
                    observer.close()


def event_record(event: Event) -> dict[str, Any]:
    """An event as a JSON object: its name and its fields."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    if isinstance(event, CheckpointRestored):
        name = "went_back"  # as programs know it
    return {"event": name, **dataclasses.asdict(event)}


def event_text(event: Event) -> str:
    """An event other than progress, for a person."""
    if isinstance(event, MemoryPlanned):
        return plan_text(event)
    if isinstance(event, RunStarted):
        return summary_text(event.summary)
    if isinstance(event, PreviewDone):
        return f"preview of step {event.step}: {event.path}"
    if isinstance(event, ValidationDone):
        when = f"after step {event.step}" if event.step else "before training"
        beside = "" if event.trained is None else f", on as many trained ones {event.trained:.4f}"
        return f"loss on held-out images {when}: {event.loss:.4f}{beside}"
    if isinstance(event, CheckpointSaved):
        return f"checkpoint of step {event.step}: {event.folder}"
    if isinstance(event, RunFinished):
        return result_text(event.result)
    return f"Note: {event.message}" if isinstance(event, Warned) else str(event)


def plan_text(event: MemoryPlanned) -> str:
    """The plan that a run takes, and what it could take instead, in two lines."""
    chosen, *others = map(_row_text, event.rows)
    free = f"{gibibytes(event.device_free)} and {gibibytes(event.ram_free)} RAM free"
    lines = [f"memory: {chosen}; {free}"]
    if others:
        lines.append(f"  what else fits: {' | '.join(others)}")
    return "\n".join(lines)


def _row_text(row: PlanRow) -> str:
    places = {"none": "nothing swapped", "file": "read from the file"}
    kept = places.get(row.master, f"in {row.master} RAM")
    swapped = f"{row.blocks_to_swap} blocks {kept}" if row.blocks_to_swap else kept
    ram = f" and {gibibytes(row.ram_bytes)} RAM" if row.ram_bytes else ""
    pace = f", about {row.seconds:.2g} s a step" if row.seconds else ""
    return f"{row.base_format}, {swapped}, {gibibytes(row.device_bytes)}{ram}{pace}"
