"""``metrics.jsonl``, a line for each step; whoever else is told hears what it says.

A line may get more fields in time: what a reader does not know it passes over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...diffusion.noise_bands import sum_of_levels
from ...errors import StorageError
from ...filesystem.storage import atomic_write, storage_error
from ...filesystem.text_files import parse_json, read_lines
from ...types import StepResult
from .tracker import Tracker

MOST = 100_000
"""Lines that are kept in memory, some 30 MB; of more the oldest are lost."""


class AppendedLines:
    """Appends lines to a file, each whole or not at all.

    Args:
        path: The file, which ends with a line or is absent.

    Raises:
        StorageError: When it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: deque[bytes] = deque(maxlen=MOST)
        self._ended = False
        try:
            self._open()
        except OSError as error:
            raise storage_error(path, error) from error

    def append(self, line: str) -> None:
        """Write a line behind those that could not be written before.

        Raises:
            StorageError: When there is no room; the line is kept.
        """
        self._pending.append(f"{line}\n".encode())
        self.write_pending()

    def write_pending(self) -> None:
        """Write what is kept.

        Raises:
            StorageError: When there is no room for all of it; the rest is kept.
        """
        while self._pending:
            try:
                self._write(self._pending[0])
            except OSError as error:
                if not self._file.closed:
                    with contextlib.suppress(OSError):
                        self._file.truncate(self._size)
                raise storage_error(self._path, error) from error
            self._pending.popleft()

    def rewrite(self, write: Callable[[], object]) -> None:
        """Have somebody replace the file, which not every system does while it is open.

        Args:
            write: Puts another file in its place, or raises and leaves it as it is. Lines that are
                not on the disk come behind it.
        """
        self._file.close()
        try:
            write()
        finally:
            # Else the next line tries it again.
            with contextlib.suppress(OSError):
                self._open()

    def close(self) -> None:
        """Try once more to write what is kept, and close; raises nothing."""
        if not self._ended:
            # Whoever waits for these lines was told before.
            with contextlib.suppress(StorageError):
                self.write_pending()
            self._file.close()
            self._ended = True

    def _open(self) -> None:
        # Without a buffer: what a full disk takes of a line is known, and taken back.
        self._file = self._path.open("ab", buffering=0)
        self._size = self._file.tell()

    def _write(self, line: bytes) -> None:
        if self._file.closed:
            self._open()
        # What an earlier line left, where even taking back was refused, goes first.
        self._file.truncate(self._size)
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(line)


MakeTrackers = Callable[[Path, int, Callable[[str], None]], Sequence[Tracker]]

_NAMES = tuple(each.name for each in dataclasses.fields(StepResult))


class Totals:
    """What the end of a run tells of all its steps; a step takes eight bytes of it.

    Attributes:
        held_out: The loss on held-out images behind the steps where it was measured.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self.held_out: dict[int, float] = {}
        self._losses = array("d")
        self._levels: Counter[str] = Counter()

    def add(self, step: StepResult) -> None:
        """Take a step in."""
        self._levels.update(step.levels or {})
        if step.validation_loss is not None:
            self.held_out[step.step] = step.validation_loss
        if step.skipped:
            self.skipped += 1
        else:
            self._losses.append(step.loss)

    @property
    def losses(self) -> tuple[float, ...]:
        """Those of the steps that were not left out, in their order."""
        return tuple(self._losses)

    @property
    def levels(self) -> tuple[int, ...]:
        """As `RunResult.levels`."""
        return sum_of_levels([self._levels])


class MetricsWriter:
    """Appends each step to a run's ``metrics.jsonl`` and tells the trackers.

    Args:
        path: The file; lines of later steps than `done` are cut off first.
        warn: Told in one line when a tracker cannot be used.
        trackers: Makes who else is told, of the run's folder, `done` and `warn`.

    Attributes:
        totals: Of the steps that the file has, or will have.

    Raises:
        StorageError: When the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        done: int,
        warn: Callable[[str], None],
        trackers: MakeTrackers,
    ) -> None:
        self.totals = Totals()
        self._path = path
        self._late: dict[int, tuple[float, float | None]] = {}
        for step in _keep_steps(path, done):
            self.totals.add(step)
        self._lines = AppendedLines(path)
        self._trackers = trackers(path.parent, done, warn)

    def write(self, result: StepResult) -> None:
        """Append one step.

        Args:
            result: The step; its numbers are finite unless it was skipped.

        Raises:
            StorageError: When the disk is full; the line is kept, and written with the next one.
        """
        self.totals.add(result)
        for tracker in self._trackers:
            tracker.write(result)
        self._append(_record(result))
        self._complete()

    def write_begin(self, loss: float, trained: float | None = None) -> None:
        """Append what was measured before the first step, as that of a step 0.

        Raises:
            StorageError: As `write`.
        """
        for tracker in self._trackers:
            tracker.write_validation(0, loss, trained)
        more = {} if trained is None else {"trained_loss": trained}
        self._append({"step": 0, "validation_loss": loss, **more})

    def write_late(self, step: int, loss: float, trained: float | None = None) -> None:
        """Add what was measured behind a step whose line is written already.

        Raises:
            StorageError: When it cannot be written; it is kept, and written behind the next step.
        """
        self.totals.held_out[step] = loss
        for tracker in self._trackers:
            tracker.write_validation(step, loss, trained)
        self._late[step] = (loss, trained)
        self._complete()

    def _complete(self) -> None:
        """Write what was measured late into the lines of its steps."""
        if self._late:
            self._lines.rewrite(functools.partial(_complete_steps, self._path, self._late))
            self._late.clear()

    def _append(self, record: Mapping[str, Any]) -> None:
        self._lines.append(json.dumps(record, allow_nan=False))

    def write_preview(
        self, step: int, index: int, frames: Tensor, *, rate: float, movie: Path
    ) -> None:
        """Show the trackers a preview, as `Tracker.write_preview`."""
        for tracker in self._trackers:
            tracker.write_preview(step, index, frames, rate=rate, movie=movie)

    def close(self) -> None:
        """Close all; raises nothing, and closes nothing twice."""
        # Whoever waits for it was told before.
        with contextlib.suppress(StorageError):
            self._complete()
        self._lines.close()
        for tracker in self._trackers:
            tracker.close()


_ABSENT = {"loss": math.nan, "grad_norm": math.nan}
"""What the line of a step that was left out does not have: JSON knows no such numbers."""


def read_metrics(path: Path) -> list[StepResult]:
    """Read whole lines; what a crash left of the last one is ignored.

    Args:
        path: A ``metrics.jsonl``, which may be absent.

    Returns:
        The steps in order; what was measured before the first one is none.
    """
    return [step for step in _read_records(path) if isinstance(step, StepResult)]


def _read_records(path: Path) -> list[StepResult | Mapping[str, Any]]:
    if not path.is_file():
        return []
    records: list[StepResult | Mapping[str, Any]] = []
    for line in read_lines(path):
        try:
            record = parse_json(line)
            before = record.get("step") == 0 and isinstance(record["validation_loss"], float)
            records.append(record if before else _step(record))
        except (ValueError, TypeError, KeyError, AttributeError):
            break
    return records


def _step(record: Mapping[str, Any]) -> StepResult:
    known = {name: each for name, each in record.items() if name in _NAMES}
    if known.get("skipped") is True:
        known = {**_ABSENT, **known}
    if known.get("bands") is not None:
        known["bands"] = tuple(known["bands"])
    return StepResult(**known)


def _record(step: StepResult) -> dict[str, Any]:
    """One line; what was not measured, or did not happen, is not in it."""
    absent = _ABSENT if step.skipped else ("skipped",)
    values = ((name, getattr(step, name)) for name in _NAMES if name not in absent)
    return {name: value for name, value in values if value is not None}


def _keep_steps(path: Path, done: int) -> list[StepResult]:
    if not path.exists():
        return []
    records = _read_records(path)
    kept = [each for each in records if isinstance(each, StepResult) and each.step <= done]
    # A run that begins anew measures anew.
    before = [each for each in records if not isinstance(each, StepResult)] if done else []
    lines = [*before[:1], *map(_record, kept)]
    try:
        _replace(path, lines)
    except StorageError:
        # On a full disk: what is kept is what the file begins with.
        _cut(path, len(lines))
    return kept


def _complete_steps(path: Path, late: Mapping[int, tuple[float, float | None]]) -> None:
    """Give the lines of some steps what was measured behind them."""
    lines: list[Mapping[str, Any]] = []
    for each in _read_records(path):
        if isinstance(each, StepResult):
            loss, trained = late.get(each.step, (each.validation_loss, each.trained_loss))
            measured = dataclasses.replace(each, validation_loss=loss, trained_loss=trained)
            lines.append(_record(measured))
        else:
            lines.append(each)
    _replace(path, lines)


def _replace(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    atomic_write(path, lambda target: _write(target, text))


def _cut(path: Path, lines: int) -> None:
    try:
        with path.open("r+b") as file:
            for _ in range(lines):
                file.readline()
            file.truncate()
    except OSError as error:
        raise storage_error(path, error) from error


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
