"""The discrete noise levels that a model was trained at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class NoiseLevels:
    """A schedule of noise levels, each of them equally likely in the model's own training.

    What is drawn for such a model is a time in [0, 1], of which each level has an equal part.

    Attributes:
        shares: The levels as shares of noise, ascending, above 0 and below 1; a level that is there
            twice is drawn twice as often.
    """

    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what is not a schedule.

        Raises:
            ValueError: When levels are missing, out of order or out of range.
        """
        inside = all(0.0 < each < 1.0 for each in self.shares)
        rising = all(one <= other for one, other in itertools.pairwise(self.shares))
        if not (self.shares and inside and rising):
            raise ValueError("noise levels have to ascend, above 0 and below 1")

    @classmethod
    def from_k(cls, sigmas: Sequence[float]) -> NoiseLevels:
        """The levels of a table of k-diffusion's sigmas.

        Args:
            sigmas: Ascending, above 0: ``x_0 + sigma eps`` is what a level means there.

        Raises:
            ValueError: When they are not a schedule.
        """
        return cls(tuple(k / (1.0 + k) if math.isfinite(k) else 1.0 for k in sigmas))

    def at(self, time: float) -> float:
        """The share of noise at a time in [0, 1]."""
        count = len(self.shares)
        return self.shares[min(int(time * count), count - 1)]

    def sampling(self, steps: int) -> Tensor:
        """The noise levels of a generation, as ComfyUI's scheduler ``simple`` spaces them.

        Args:
            steps: Number of steps, at least 1.

        Returns:
            `[steps + 1]`, float32, from the strongest level down; the last one is 0.
        """
        stride = len(self.shares) / steps
        chosen = [self.shares[-1 - int(index * stride)] for index in range(steps)]
        return torch.tensor([*chosen, 0.0], dtype=torch.float32)
