"""The loss on held-out images, at noise and noise levels that are the same each time.

Every held-out image is measured at the same few noise levels, the quantiles of those that the run
trains at, with the same noise. So two numbers differ by what was learned between them alone.
Nothing here draws from a generator that training draws from: a run trains the same bits with it
and without.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.masks import MaskSection
from ..counters import counter_seed
from ..data.batches import make_batch
from ..data.cache.cached_dataset import CachedDataset
from ..device import is_out_of_memory, release_memory
from ..inference.sampler import evaluating
from ..types import Batch
from .loop_hooks import Measured
from .out_of_memory import first_line
from .processes import Processes
from .read_ahead import ReadAhead
from .step import Points, noisy_points

Levels = Callable[[Batch], Sequence[float]]
"""The noise levels that a batch is measured at."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out samples, in the batches that they are measured in.

    Attributes:
        dataset: The encoded samples.
        batches: Indices of samples that share a pass.
        levels: The noise levels of a batch.
        count: How many noise levels there are.
        mask: What masks weigh.
    """

    dataset: CachedDataset
    batches: tuple[tuple[int, ...], ...]
    levels: Levels
    count: int
    mask: MaskSection

    @property
    def passes(self) -> int:
        """Passes through the base of one measurement."""
        return len(self.batches) * self.count

    def points(self, number: int) -> Points:
        """What goes through the base in a pass, from 0."""
        at, level = divmod(number, self.count)
        indices = self.batches[at]
        # As it is: the first caption, none dropped, with its control images and not mirrored.
        samples = [self.dataset.load(index) for index in indices]
        batch = make_batch(samples, tuple(range(len(samples))), self.mask)
        noise = torch.stack(
            [
                _noise(each.latents, each.name, each.bucket.width, each.bucket.height, level)
                for each in samples
            ]
        )
        return noisy_points(batch, (self.levels(batch)[level],) * len(samples), noise)


def _noise(latents: Tensor, *names: str | int) -> Tensor:
    # Named by the image alone: the same in every run, whatever else is in the dataset.
    generator = torch.Generator().manual_seed(counter_seed(0, "validation", *names))
    return torch.empty(latents.shape).normal_(generator=generator)


def hold_out(
    dataset: CachedDataset,
    most: int,
    batch_sizes: Sequence[int],
    levels: Levels,
    count: int,
    mask: MaskSection,
) -> HeldOut | None:
    """Choose what is measured.

    Args:
        dataset: The encoded samples.
        most: The most images; of more, the same ones in every run.
        batch_sizes: Of each sample, the most that share a pass.
        levels: The noise levels of a batch.
        count: How many of them there are.
        mask: What masks weigh.

    Returns:
        None where no sample is held out.
    """
    held = [index for index, is_held in enumerate(dataset.validations) if is_held]
    names = {dataset.items[index].name for index in held}
    chosen = set(sorted(names, key=lambda name: counter_seed(0, "held out", name))[:most])
    groups: dict[Hashable, list[int]] = {}
    for index in held:
        item = dataset.items[index]
        if item.name in chosen:
            groups.setdefault((item.bucket, item.kind, batch_sizes[index]), []).append(index)
    batches = [
        tuple(group[start : start + batch_sizes[group[0]]])
        for group in groups.values()
        for start in range(0, len(group), batch_sizes[group[0]])
    ]
    return HeldOut(dataset, tuple(batches), levels, count, mask) if batches else None


@dataclass(frozen=True, slots=True)
class Validation:
    """Measures the loss on held-out samples; every process calls it at the same steps.

    Attributes:
        held: What is measured.
        loss: Summed loss of the points of a pass.
        transformer: The denoiser, with its adapter.
        processes: Share the passes.
        cancelled: Whether the run is to end.
        warn: Told in one line why nothing was measured.
    """

    held: HeldOut
    loss: Callable[[Points], Tensor]
    transformer: torch.nn.Module
    processes: Processes
    cancelled: Callable[[], bool]
    warn: Callable[[str], None]

    def __call__(self, step: int) -> Measured:
        """Measure.

        Args:
            step: Steps made, for the warning.

        Returns:
            The mean over images and noise levels, of the loss that training has without weights.
        """
        total, points, full = 0.0, 0, ""
        with torch.no_grad(), evaluating(self.transformer):
            try:
                for loss, count in self._losses():
                    total, points = total + loss, points + count
            except Exception as error:
                if self.processes.sharded or not is_out_of_memory(error):
                    raise
                full = first_line(error)
                # The error's frames hold what filled the device.
                traceback.clear_frames(error.__traceback__)
        if full:
            release_memory(self.processes.device)
        numbers = [total, float(points), float(bool(full)), float(self.cancelled())]
        total, points, failed, stopped = self.processes.sum_numbers(numbers)
        reason = f"the device's memory is full ({full})" if failed else ""
        reason = reason or ("" if math.isfinite(total) else "it is not a finite number")
        if reason:
            self.warn(f"No loss on held-out images at step {step}: {reason}.")
        whole = not reason and points == self.held.count * sum(map(len, self.held.batches))
        return Measured(total / points if whole else None, stopped > 0)

    def _losses(self) -> Iterator[tuple[float, int]]:
        index, count = self.processes.index, self.processes.count
        mine = list(range(index, self.held.passes, count))
        # A pass through a base in parts takes all processes.
        rounds = -(-self.held.passes // count) if self.processes.sharded else len(mine)

        def make(number: int, _: int) -> Points:
            return self.held.points(min(number * count + index, self.held.passes - 1))

        def following(number: int, _: int) -> tuple[int, int] | None:
            return (number + 1, 0) if number + 1 < rounds else None

        with contextlib.closing(ReadAhead(make, following)) as ahead:
            for number in range(rounds):
                if self._ends():
                    return
                points = ahead(number, 0)
                loss = float(self.loss(points))
                if number < len(mine):
                    yield loss, len(points.sigmas)

    def _ends(self) -> bool:
        asked = self.cancelled()
        if not self.processes.sharded:
            return asked
        return self.processes.sum_numbers([float(asked)])[0] > 0
