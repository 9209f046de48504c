"""A run's numbers: ``metrics.jsonl`` for programs, TensorBoard events for people."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..storage import atomic_write, storage_error
from ..types import StepResult

if TYPE_CHECKING:
    from types import TracebackType

    from torch import Tensor

TENSORBOARD_ABSENT = (
    "TensorBoard is not installed, so only metrics.jsonl is written "
    "(pip install 'adapter-trainer[tensorboard]')."
)


class MetricsWriter:
    """Appends each step to a run's ``metrics.jsonl`` and, where installed, to TensorBoard.

    Args:
        path: The file; lines of later steps than `done` are cut off first.
        done: Steps that the run has made.
    """

    def __init__(self, path: Path, done: int) -> None:
        self._path = path
        self.steps = _keep_steps(path, done)
        self._file = path.open("a", encoding="utf-8", newline="\n")
        self._board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(path.parent), purge_step=done + 1 if done else None)

    @property
    def has_board(self) -> bool:
        """Whether TensorBoard events are written."""
        return self._board is not None

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
        if self._board is not None:
            for name in ("loss", "learning_rate", "grad_norm", "sigma_mean", "step_seconds"):
                self._board.add_scalar(f"training/{name}", getattr(result, name), result.step)

    def write_picture(self, step: int, index: int, pixels: Tensor) -> None:
        """Add a preview picture to TensorBoard.

        Args:
            step: Steps made.
            index: The prompt's index.
            pixels: `[3, H, W]` in [-1, 1].
        """
        if self._board is not None:
            self._board.add_image(f"preview/{index}", (pixels.clamp(-1, 1) + 1) / 2, step)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


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
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            steps.append(StepResult(**json.loads(line)))
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
