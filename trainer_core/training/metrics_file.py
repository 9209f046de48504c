"""``metrics.jsonl``, a line for each step; whoever else is told hears what it says."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..filesystem.storage import atomic_write
from ..filesystem.text_files import parse_json, read_lines
from ..types import StepResult
from .appended_lines import AppendedLines
from .tensorboard import TensorBoard

if TYPE_CHECKING:
    from types import TracebackType


class MetricsWriter:
    """Appends each step to a run's ``metrics.jsonl`` and, where it works, to TensorBoard.

    Args:
        path: The file; lines of later steps than `done` are cut off first.
        done: Steps that the run has made.
        warn: Told in one line when TensorBoard cannot be used.

    Raises:
        StorageError: When the file cannot be written.
    """

    def __init__(self, path: Path, done: int, warn: Callable[[str], None]) -> None:
        self.steps = _keep_steps(path, done)
        self._lines = AppendedLines(path)
        self._tensorboard = TensorBoard(path.parent, done, warn)

    def write(self, result: StepResult) -> None:
        """Append one step.

        Args:
            result: The step; its numbers are finite unless it was skipped.

        Raises:
            StorageError: When the disk is full; the line is kept, and written with the next one.
        """
        self.steps.append(result)
        self._tensorboard.write(result)
        self._append(_record(result))

    def write_begin(self, loss: float) -> None:
        """Append the loss on held-out images before the first step, as that of a step 0.

        Raises:
            StorageError: As `write`.
        """
        self._tensorboard.write_validation(0, loss)
        self._append({"step": 0, "validation_loss": loss})

    def _append(self, record: Mapping[str, Any]) -> None:
        self._lines.append(json.dumps(record, allow_nan=False))

    def write_image(self, step: int, index: int, pixels: Tensor) -> None:
        """Add a preview image to TensorBoard.

        Args:
            step: Steps made.
            index: The prompt's index.
            pixels: `[3 or 4, H, W]` in [-1, 1].
        """
        self._tensorboard.write_image(step, index, pixels)

    def close(self) -> None:
        """Close both; raises nothing, and closes nothing twice."""
        self._lines.close()
        self._tensorboard.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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
            absent = _ABSENT if record.get("skipped") is True else {}
            records.append(record if before else StepResult(**{**absent, **record}))
        except (ValueError, TypeError, KeyError, AttributeError):
            break
    return records


def _record(step: StepResult) -> dict[str, Any]:
    """One line; what was not measured, or did not happen, is not in it."""
    record = {name: each for name, each in dataclasses.asdict(step).items() if each is not None}
    for name in _ABSENT if step.skipped else ("skipped",):
        del record[name]
    return record


def _keep_steps(path: Path, done: int) -> list[StepResult]:
    if not path.exists():
        return []
    records = _read_records(path)
    kept = [each for each in records if isinstance(each, StepResult) and each.step <= done]
    # A run that begins anew measures anew.
    before = [each for each in records if not isinstance(each, StepResult)] if done else []
    lines = [*before[:1], *map(_record, kept)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    atomic_write(path, lambda target: _write(target, text))
    return kept


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
