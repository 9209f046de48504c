"""`Tracker`: hands metrics on to a library such as TensorBoard; if it fails, the run goes on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import TrainerError
from ...types import StepResult

_PLAIN = ("loss", "learning_rate", "grad_norm", "sigma_mean", "step_seconds")


class Tracker(ABC):
    """Tells a library of a run's steps. Whatever is wrong with it is told once; the run goes on.

    Attributes:
        title: The library, for people.

    Args:
        warn: Told in one line why nothing is written, or no more.
    """

    title: str

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._works = False
        self._means = RunningMeans()

    def write(self, result: StepResult) -> None:
        """Tell the numbers of a step."""
        values = step_values(result, self._means)
        self._tell(lambda: self._add_values(values, result.step))

    def write_validation(self, step: int, loss: float, trained: float | None = None) -> None:
        """Tell the loss on held-out images, and that on as many trained ones with the gap."""
        self._tell(lambda: self._add_values(_validation(loss, trained), step))

    def write_preview(
        self, step: int, index: int, frames: Tensor, *, rate: float, movie: Path
    ) -> None:
        """Show a preview.

        Args:
            frames: `[T, 3 or 4, H, W]` in [-1, 1]; one of an image.
            rate: Frames per second of a clip.
            movie: MP4 of a clip; absent where it could not be written.
        """
        shown = (frames.clamp(-1, 1) + 1) / 2
        if len(shown) == 1:
            self._tell(lambda: self._add_image(index, shown[0], step))
        else:
            self._tell(lambda: self._add_clip(index, shown, step, rate=rate, movie=movie))

    def close(self) -> None:
        """Write what is pending."""
        self._tell(self._finish)
        self._works = False

    @abstractmethod
    def _add_values(self, values: Mapping[str, float], step: int) -> None:
        """Tell numbers by their names."""

    @abstractmethod
    def _add_image(self, index: int, image: Tensor, step: int) -> None:
        """Show an image `[3 or 4, H, W]` in [0, 1]."""

    @abstractmethod
    def _add_clip(self, index: int, frames: Tensor, step: int, *, rate: float, movie: Path) -> None:
        """Show a clip `[T, 3, H, W]` in [0, 1]; its MP4 may be absent."""

    @abstractmethod
    def _finish(self) -> None:
        """Write what is pending and end."""

    def _begin(self, action: Callable[[], Any]) -> None:
        self._works = True
        self._tell(action)

    def _tell(self, action: Callable[[], Any]) -> None:
        if not self._works:
            return
        try:
            action()
        # A broken installation raises anything at all, such as protobuf's TypeError.
        except Exception as error:  # noqa: BLE001
            self._works = False
            self._warn(
                f"{self.title} does not work ({_reason(error)}), so it is told nothing more; "
                "metrics.jsonl has everything."
            )


def _reason(error: Exception) -> str:
    if isinstance(error, TrainerError):
        return f"{error.found}: {error.remedy}"
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


class RunningMeans:
    """Means of the last values by name, each free of the zero that it would start from.

    Args:
        smooth: How much of a mean each value keeps; 0.98 are about the last 50 values.
    """

    def __init__(self, smooth: float = 0.98) -> None:
        self._smooth = smooth
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, value: float) -> float:
        """Take a value in and give the mean."""
        total, weight = self._sums.get(name, (0.0, 0.0))
        total = self._smooth * total + (1 - self._smooth) * value
        weight = self._smooth * weight + (1 - self._smooth)
        self._sums[name] = total, weight
        return total / weight


def step_values(result: StepResult, means: RunningMeans) -> dict[str, float]:
    """The numbers of a step by the names under which trackers show them.

    Args:
        means: Of the steps before; takes this one in.
    """
    plain = {f"training/{name}": getattr(result, name) for name in _PLAIN}
    # A step that was left out has no loss.
    values = {name: value for name, value in plain.items() if math.isfinite(value)}
    bands = result.bands or ()
    for band, mean in enumerate(bands):
        if mean is not None:
            name = f"loss_by_sigma/{band / len(bands):.2f}-{(band + 1) / len(bands):.2f}"
            values[name] = means.add(name, mean)
    for block, share in (result.norms or {}).items():
        values[f"adapter_norm/{block}"] = share
    values |= {f"seconds/{part}": each for part, each in (result.times or {}).items()}
    if result.times and result.times.keys() > {"data"}:
        # On a GPU the parts are those of the step before.
        values["seconds/rest"] = max(0.0, result.step_seconds - math.fsum(result.times.values()))
    for name, mebibytes in (result.memory or {}).items():
        values[f"memory_gib/{name}"] = mebibytes / 1024
    if result.validation_loss is not None:
        values |= _validation(result.validation_loss, result.trained_loss)
    return values


def _validation(loss: float, trained: float | None) -> dict[str, float]:
    if trained is None:
        return {"validation/loss": loss}
    return {
        "validation/loss": loss,
        "validation/trained_loss": trained,
        "validation/gap": loss - trained,
    }
