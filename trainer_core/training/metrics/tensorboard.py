"""TensorBoard's events, for people; they repeat what ``metrics.jsonl`` says."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..observer import TENSORBOARD_ABSENT
from .tracker import Tracker


class TensorBoard(Tracker):
    """Writes TensorBoard events where it is installed and works.

    Args:
        folder: Where the event file goes.
        done: Steps that the run has made; events of later steps are hidden.
        warn: Told in one line why nothing is written, or no more.
    """

    title = "TensorBoard"

    def __init__(self, folder: Path, done: int, warn: Callable[[str], None]) -> None:
        super().__init__(warn)
        self._writer: Any = None
        if importlib.util.find_spec("tensorboard") is None:
            warn(TENSORBOARD_ABSENT)
            return

        def load() -> None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

        self._begin(load)

    def _add_values(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def _add_image(self, index: int, image: Tensor, step: int) -> None:
        self._writer.add_image(f"preview/{index}", image, step)

    def _finish(self) -> None:
        self._writer.close()
