"""`TensorBoard`: a tracker; its event files repeat what ``metrics.jsonl`` says."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...data.image import from_pixels
from ..observer import TENSORBOARD_ABSENT
from .tracker import Tracker


class TensorBoard(Tracker):
    """Writes TensorBoard events where it is installed and works.

    Args:
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

    def _add_clip(self, index: int, frames: Tensor, step: int, *, rate: float, movie: Path) -> None:
        # Its own add_video needs moviepy, to write the same GIF.
        from tensorboard.compat.proto.summary_pb2 import (
            Summary,  # pyright: ignore[reportAttributeAccessIssue]
        )

        first, *others = (from_pixels(each * 2 - 1) for each in frames)
        written = io.BytesIO()
        moving = {"save_all": True, "append_images": others, "loop": 0}
        first.save(written, format="GIF", duration=round(1000 / rate), **moving)
        image = Summary.Image(encoded_image_string=written.getvalue(), colorspace=3)
        image.height, image.width = frames.shape[-2:]
        summary = Summary(value=[Summary.Value(tag=f"preview/{index}", image=image)])
        self._writer.file_writer.add_summary(summary, step)

    def _finish(self) -> None:
        self._writer.close()
