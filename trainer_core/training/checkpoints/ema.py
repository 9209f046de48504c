"""`FactorAverages`: EMA and power averages of an adapter's factors, kept while it trains.

What is averaged are the factors, as they are trained: the delta of averaged factors is not the
average of the deltas, as a product of two means is not the mean of a product. `docs/ema.md` says
how much that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...config import EmaSection
from .power_ema import KEPT_LENGTHS, exponent_of, kept_share

EXPONENTIAL = "average"
"""What the names of the exponential average's tensors begin with in a checkpoint."""

POWER = ("power_0", "power_1")
"""The same of the averages of a power function, in the order of their lengths."""

_COUNTS = "counts"


def exponential_share(decay: float, updates: int) -> float:
    """How much of the average an update keeps: ``min(decay, (1 + n) / (10 + n))``.

    n is the number of updates before this one. The first one keeps nothing, so that the adapter as
    it was before training has no share.

    Args:
        decay: Of the run, in [0, 1).
        updates: How many the average is made of with this one, from 1.

    Source:
        The warm-up of TensorFlow's ExponentialMovingAverage, as Diffusers' `EMAModel` has it.
    """
    before = updates - 1
    return min(decay, (1 + before) / (10 + before)) if before else 0.0


@dataclass(slots=True)
class RunningAverage:
    """One average of some tensors.

    Attributes:
        share: Number of updates, with this one, to how much of the average it keeps.
        tensors: The average by name, at least in float32.
        updates: How many it is made of.
        began: The step behind which it began.
    """

    share: Callable[[int], float]
    tensors: dict[str, Tensor]
    updates: int = 0
    began: int = 0

    @torch.no_grad()
    def update(self, values: Mapping[str, Tensor]) -> None:
        """Take the present values in."""
        self.updates += 1
        averages = list(self.tensors.values())
        # Those of fewer bits are widened: small steps of an average would be lost in them.
        present = [values[name].detach().to(each.dtype) for name, each in self.tensors.items()]
        moved = 1.0 - self.share(self.updates)
        torch._foreach_lerp_(averages, present, moved)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def begin(self, values: Mapping[str, Tensor], step: int) -> None:
        """Begin with the present values, behind a step."""
        self.updates, self.began = 0, step
        for name, each in self.tensors.items():
            each.copy_(values[name])


class FactorAverages:
    """The averages that a run keeps of its adapter.

    Args:
        factors: What is trained, by name; the same tensors for the whole run.
    """

    def __init__(self, settings: EmaSection, factors: Mapping[str, Tensor]) -> None:
        self._settings = settings
        self._factors = dict(factors)
        self._averages = {
            name: RunningAverage(share, {n: _wide(each) for n, each in factors.items()})
            for name, share in _shares(settings).items()
        }

    @property
    def exponential(self) -> Mapping[str, Tensor] | None:
        """What previews and files are made of; None where only those of a power function are."""
        average = self._averages.get(EXPONENTIAL)
        return None if average is None else average.tensors

    def update(self) -> None:
        """Take in what an update has made of the factors; the same in every process."""
        for average in self._averages.values():
            average.update(self._factors)

    def held(self) -> list[Tensor]:
        """What is in memory beside the factors, on their devices."""
        return [each for average in self._averages.values() for each in average.tensors.values()]

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint keeps of them: ``<average>.<factor>``, and their counts."""
        kept: dict[str, Tensor] = {}
        for prefix, average in self._averages.items():
            kept |= {f"{prefix}.{name}": each for name, each in average.tensors.items()}
            kept[f"{_COUNTS}.{prefix}"] = torch.tensor([average.updates, average.began])
        return kept

    def restore(self, kept: Mapping[str, Tensor], step: int) -> None:
        """Put them back as they were, bit by bit; one that was not kept begins here.

        Args:
            kept: Tensors of a checkpoint, as `tensors` gave them among others.
        """
        for prefix, average in self._averages.items():
            counts = kept.get(f"{_COUNTS}.{prefix}")
            if counts is None:
                average.begin(self._factors, step)
                continue
            average.updates, average.began = (int(each) for each in counts)
            for name, each in average.tensors.items():
                each.copy_(kept[f"{prefix}.{name}"])

    def about_exponential(self) -> dict[str, Any] | None:
        """What a file's header says of the average that it holds; None without one."""
        average = self._averages.get(EXPONENTIAL)
        if average is None:
            return None
        decay = self._settings.decay
        return {"kind": "exponential", "decay": decay, "updates": average.updates}

    def about_power(self) -> dict[str, Any] | None:
        """How much a checkpoint's averages of a power function are made of; None without them."""
        average = self._averages.get(POWER[0])
        if average is None:
            return None
        lengths = list(KEPT_LENGTHS)
        return {"lengths": lengths, "updates": average.updates, "began": average.began}


def averages_of(settings: EmaSection, factors: Mapping[str, Tensor]) -> FactorAverages | None:
    """Begin the averages of a run; None where it keeps none."""
    return FactorAverages(settings, factors) if average_count(settings) else None


def average_count(settings: EmaSection) -> int:
    """How many averages a run keeps, each of the adapter's size."""
    return sum(1 for _ in _names(settings))


def _names(settings: EmaSection) -> Iterator[str]:
    if settings.decay:
        yield EXPONENTIAL
    if settings.post_hoc:
        yield from POWER


def _shares(settings: EmaSection) -> dict[str, Callable[[int], float]]:
    found: dict[str, Callable[[int], float]] = {}
    for name in _names(settings):
        if name == EXPONENTIAL:
            found[name] = partial(exponential_share, settings.decay)
        else:
            exponent = exponent_of(KEPT_LENGTHS[POWER.index(name)])
            found[name] = partial(kept_share, exponent=exponent)
    return found


def _wide(tensor: Tensor) -> Tensor:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(dtype, copy=True)
