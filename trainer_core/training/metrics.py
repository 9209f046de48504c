"""A run's numbers: ``metrics.jsonl`` for programs, TensorBoard events for people."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..filesystem.storage import atomic_write, storage_error
from ..filesystem.text_files import parse_json, read_lines
from ..types import StepResult
from .tensorboard import TensorBoard

if TYPE_CHECKING:
    from types import TracebackType

    from torch import Tensor


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
        self._path = path
        self.steps = _keep_steps(path, done)
        try:
            self._file = path.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise storage_error(path, error) from error
        self._tensorboard = TensorBoard(path.parent, done, warn)

    def write(self, result: StepResult) -> None:
        """Append one step.

        Args:
            result: The step; every number is finite.

        Raises:
            StorageError: When the disk is full.
        """
        try:
            self._file.write(json.dumps(dataclasses.asdict(result), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise storage_error(self._path, error) from error
        self.steps.append(result)
        self._tensorboard.write(result)

    def write_image(self, step: int, index: int, pixels: Tensor) -> None:
        """Add a preview image to TensorBoard.

        Args:
            step: Steps made.
            index: The prompt's index.
            pixels: `[3, H, W]` in [-1, 1].
        """
        self._tensorboard.write_image(step, index, pixels)

    def close(self) -> None:
        """Close both; raises nothing, because every whole line is on the disk already."""
        # What a full disk refused is still pending, and would be refused again.
        with contextlib.suppress(OSError):
            self._file.close()
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


def read_metrics(path: Path) -> list[StepResult]:
    """Read whole lines; what a crash left of the last one is ignored.

    Args:
        path: A ``metrics.jsonl``, which may be absent.

    Returns:
        The steps in order.
    """
    if not path.is_file():
        return []
    steps: list[StepResult] = []
    for line in read_lines(path):
        try:
            steps.append(StepResult(**parse_json(line)))
        except (ValueError, TypeError):
            break
    return steps


def _keep_steps(path: Path, done: int) -> list[StepResult]:
    if not path.exists():
        return []
    kept = [step for step in read_metrics(path) if step.step <= done]
    text = "".join(json.dumps(dataclasses.asdict(step)) + "\n" for step in kept)
    atomic_write(path, lambda target: _write(target, text))
    return kept


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
