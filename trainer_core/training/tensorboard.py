"""TensorBoard's events, for people; they repeat what ``metrics.jsonl`` says.

Whatever is wrong with TensorBoard is told once, and the run goes on without it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..types import StepResult
from .observer import TENSORBOARD_ABSENT


class TensorBoard:
    """Writes TensorBoard events where it is installed and works.

    Args:
        folder: Where the event file goes.
        done: Steps that the run has made; events of later steps are hidden.
        warn: Told in one line why nothing is written, or no more.
    """

    def __init__(self, folder: Path, done: int, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._writer: Any = None
        if importlib.util.find_spec("tensorboard") is None:
            warn(TENSORBOARD_ABSENT)
            return

        def load() -> None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

        self._try(load)

    def write(self, result: StepResult) -> None:
        """Add the numbers of a step."""
        for name in ("loss", "learning_rate", "grad_norm", "sigma_mean", "step_seconds"):
            number = getattr(result, name)
            if math.isfinite(number):
                self._add("add_scalar", f"training/{name}", number, result.step)
        if result.validation_loss is not None:
            self.write_validation(result.step, result.validation_loss)

    def write_validation(self, step: int, loss: float) -> None:
        """Add the loss on held-out images."""
        self._add("add_scalar", "validation/loss", loss, step)

    def write_image(self, step: int, index: int, pixels: Tensor) -> None:
        """Add a preview image.

        Args:
            step: Steps made.
            index: The prompt's index.
            pixels: `[3 or 4, H, W]` in [-1, 1].
        """
        self._add("add_image", f"preview/{index}", (pixels.clamp(-1, 1) + 1) / 2, step)

    def close(self) -> None:
        """Write what is pending."""
        if self._writer is not None:
            self._try(self._writer.close)

    def _add(self, what: str, *values: Any) -> None:
        if self._writer is not None:
            self._try(lambda: getattr(self._writer, what)(*values))

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        # A broken installation raises anything at all, such as protobuf's TypeError.
        except Exception as error:  # noqa: BLE001
            self._writer = None
            reason = next(iter(str(error).splitlines()), "")
            self._warn(
                f"TensorBoard does not work ({type(error).__name__}: {reason}), so only "
                "metrics.jsonl is written."
            )
