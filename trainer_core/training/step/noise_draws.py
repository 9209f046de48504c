"""What is drawn for a sample of a step: the quantile of its noise level, and its noise.

Independent draws are named by the sample's place in the step. Stratified ones are named by the
sample and how often it was trained before: two visits in a row have one noise level, the second
with the noise of the first turned round, and the levels of the pairs follow each other in steps of
the golden ratio, which fill [0, 1] evenly for any number of visits. Each visit by itself has the
distribution of an independent draw, so the mean of the gradient stays; what the visits of an image
do not share cancels instead of being averaged away
(`docs/decisions/0061-noise-that-cancels.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...counters import counter_seed

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Draw:
    """What is drawn for one sample.

    Attributes:
        names: What names the draws of its noise.
        place: In [0, 1), the quantile at which its noise level lies.
        sign: 1, or -1 where the noise is turned round.
    """

    seed: int
    names: tuple[str | int, ...]
    place: float
    sign: float = 1.0

    def normal_(self, row: Tensor, what: str = "noise") -> Tensor:
        """Fill a tensor on the CPU, so that every device trains on the same numbers.

        Args:
            what: Names draws that are independent of each other.
        """
        return row.normal_(generator=_generator(self.seed, what, *self.names)).mul_(self.sign)


def independent_draw(seed: int, step: int, position: int) -> Draw:
    """A draw that depends on no other.

    Args:
        step: From 1.
        position: Place of the sample in the step, over all micro-batches and processes.
    """
    return Draw(seed, (step, position), _uniform(seed, "sigma", step, position))


def stratified_draw(seed: int, sample: int, turn: int) -> Draw:
    """A draw that balances those of the sample's other visits.

    Args:
        sample: Its index in the dataset.
        turn: How often it was trained before in the run.
    """
    pair, is_second = divmod(turn, 2)
    place = (_uniform(seed, "sigma of sample", sample) + pair * _GOLDEN) % 1.0
    return Draw(seed, ("sample", sample, pair), place, -1.0 if is_second else 1.0)


def _uniform(seed: int, *names: str | int) -> float:
    return float(torch.rand((), generator=_generator(seed, *names), dtype=torch.float64))


def _generator(seed: int, *names: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(counter_seed(seed, *names))
