"""Which samples make up a batch: a function of the seed and the step, and of nothing else.

Each epoch goes through every sample (``num_repeats`` times) in an order of its own. Samples of
different sizes never share a micro-batch. A share of each micro-batch may be left to points that
preserve the base (`trainer_core.training.preservation`); they are counted here and drawn there.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache

import torch

from ..config.masks import MaskSection
from ..counters import counter_seed
from ..types import Batch, Bucket, View
from .cache.cached_dataset import CachedDataset
from .captions import drops_caption
from .masks import batch_weights
from .views import Views

_Chunk = tuple[tuple[int, int], ...]
"""Samples of a micro-batch: the index of each, and how often it was there in its epoch before."""


class BatchPlan:
    """The order of the samples.

    Args:
        buckets: Size of each sample.
        control_counts: What else samples of a micro-batch must agree in, such as their number of
            control images, or `CachedDataset.kinds`.
        batch_size: Samples per micro-batch.
        micro_batches: Micro-batches per step.
        num_repeats: How often each sample appears in an epoch; one number for all, or one each, 0
            for one that is never trained (`data.paces`).
        seed: The run's seed.
        preserved_share: Share of the samples that preserves the base, 0 to below 1. Of a larger
            micro-batch it is the same whole number each time, at least one; micro-batches of one
            sample take turns.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        control_counts: Sequence[Hashable],
        batch_size: int,
        micro_batches: int,
        num_repeats: int | Sequence[int],
        seed: int,
        preserved_share: float = 0.0,
    ) -> None:
        repeats = [num_repeats] * len(buckets) if isinstance(num_repeats, int) else num_repeats
        if min(batch_size, micro_batches, max(repeats, default=0)) < 1 or min(repeats) < 0:
            raise ValueError("a batch plan needs samples and counts of at least 1")
        if not 0 <= preserved_share < 1 or len(repeats) != len(buckets):
            raise ValueError("a share is in [0, 1), and each sample has a number of repeats")
        groups: dict[Hashable, list[int]] = {}
        for index, kind in enumerate(zip(buckets, control_counts, strict=True)):
            if repeats[index]:
                groups.setdefault(kind, []).append(index)
        self._groups = tuple(tuple(group) for group in groups.values())
        self.batch_size = batch_size
        self.micro_batches = micro_batches
        self.seed = seed
        self._repeats = tuple(repeats)
        self._share = preserved_share
        wanted = max(1, round(batch_size * preserved_share)) if preserved_share else 0
        self._preserved = min(wanted, batch_size - 1)
        self._own_size = batch_size - self._preserved
        self.chunks_per_epoch = sum(
            -(-sum(self._repeats[index] for index in group) // self._own_size)
            for group in self._groups
        )
        # Remembered, not needed: the order of an epoch follows from its number.
        self._epoch_chunks = lru_cache(maxsize=2)(self._make_epoch)

    def indices(self, step: int, micro: int) -> tuple[int, ...]:
        """Tell which samples are trained in a micro-batch, from 0, of an optimizer step, from 1.

        Returns:
            Indices of samples that agree in size and controls: `batch_size` of them, less those
            that preserve the base.
        """
        number = self._number(step, micro)
        drawn = self._drawn_before(number)
        if self._drawn_before(number + 1) - drawn == self.batch_size:
            return ()
        epoch, place = divmod(self._own_before(number), self.chunks_per_epoch)
        return tuple(index for index, _ in self._epoch_chunks(epoch)[place])

    def turns(self, step: int, micro: int) -> tuple[int, ...]:
        """How often each of the `indices` of a micro-batch was trained before in the run.

        Samples that complete a group's last micro-batch count as those of the next epoch.
        """
        number = self._number(step, micro)
        if not self.indices(step, micro):
            return ()
        epoch, place = divmod(self._own_before(number), self.chunks_per_epoch)
        chunk = self._epoch_chunks(epoch)[place]
        return tuple(epoch * self._repeats[index] + repeat for index, repeat in chunk)

    def preserved(self, step: int, micro: int) -> range:
        """Which preservation points complete a micro-batch.

        Returns:
            Numbers that count on from 0 over the whole run.
        """
        number = self._number(step, micro)
        return range(self._drawn_before(number), self._drawn_before(number + 1))

    def epoch(self, step: int) -> float:
        """Tell how many times the dataset was gone through when a step is done."""
        return self._own_before(step * self.micro_batches) / self.chunks_per_epoch

    def _number(self, step: int, micro: int) -> int:
        if step < 1 or not 0 <= micro < self.micro_batches:
            raise ValueError(f"there is no micro-batch {micro} of step {step}")
        return (step - 1) * self.micro_batches + micro

    def _drawn_before(self, number: int) -> int:
        """Points that preserve the base in all micro-batches before one."""
        if self.batch_size == 1:
            return math.floor(number * self._share + 1e-9)
        return number * self._preserved

    def _own_before(self, number: int) -> int:
        """Micro-batches with samples of the dataset before one."""
        return number - self._drawn_before(number) if self.batch_size == 1 else number

    def _make_epoch(self, epoch: int) -> tuple[_Chunk, ...]:
        groups = enumerate(self._groups)
        chunks = [chunk for n, group in groups for chunk in self._make_chunks(epoch, n, group)]
        return tuple(chunks[place] for place in self._order(len(chunks), "chunks", epoch))

    def _make_chunks(self, epoch: int, number: int, group: Sequence[int]) -> list[_Chunk]:
        order = [
            (group[place], repeat)
            for repeat in range(max(self._repeats[index] for index in group))
            for place in self._order(len(group), "samples", epoch, number, repeat)
            if self._repeats[group[place]] > repeat
        ]
        size = self._own_size
        chunks = [tuple(order[start : start + size]) for start in range(0, len(order), size)]
        chunks[-1] = self._fill(chunks[-1], group, epoch, number)
        return chunks

    def _fill(self, chunk: _Chunk, group: Sequence[int], epoch: int, number: int) -> _Chunk:
        """Complete a group's last chunk, with samples that it does not hold yet if there are."""
        filled, there = list(chunk), {index for index, _ in chunk}
        turn = 0
        while len(filled) < self._own_size:
            drawn = [group[p] for p in self._order(len(group), "fill", epoch, number, turn)]
            fresh = [(i, self._repeats[i] + turn) for i in drawn if turn or i not in there]
            filled += fresh[: self._own_size - len(filled)]
            turn += 1
        return tuple(filled)

    def _order(self, length: int, *names: str | int) -> list[int]:
        # Sorted by hashes: the same on every machine and version of Python, unlike a shuffle.
        return sorted(
            range(length), key=lambda place: counter_seed(self.seed, "order", *names, place)
        )


def load_batch(
    dataset: CachedDataset,
    plan: BatchPlan,
    step: int,
    micro: int,
    caption_dropout: float,
    seed: int,
    share: tuple[int, int] = (0, 1),
    sample_weights: Sequence[float] = (),
    views: Views | None = None,
    mask: MaskSection | None = None,
) -> Batch | None:
    """Read one micro-batch, or one process's share of it.

    Args:
        dataset: The encoded samples.
        plan: Their order.
        step: Optimizer step, from 1.
        micro: Micro-batch within the step, from 0.
        caption_dropout: Probability of an empty caption, 0 to 1.
        seed: The run's seed.
        share: ``(index, count)``: which of how many nearly equal parts to read.
        sample_weights: Factor on the loss of each sample of the dataset (`data.paces`); empty
            where all are 1.
        views: Chooses the view of each sample; unset: the first caption or, with the probability
            of ``caption_dropout``, the empty one.
        mask: What masks weigh; unset: the defaults.

    Returns:
        The samples; `positions` count over the whole step. None where all of the part preserves
        the base.

    Raises:
        ValueError: When the part is empty because there are more parts than samples.
        StorageError: When a cached file is damaged.
    """
    indices = plan.indices(step, micro)
    mine = [place for place in part_of(plan.batch_size, share) if place < len(indices)]
    if not mine:
        return None
    positions = tuple(micro * plan.batch_size + place for place in mine)
    turns = plan.turns(step, micro)

    def view(place: int, position: int) -> View:
        if views is None:
            return View(None if drops_caption(caption_dropout, seed, step, position) else 0)
        return views.of_sample(dataset.items[indices[place]], step, position, turns[place])

    samples = [
        dataset.load(indices[place], view(place, position))
        for place, position in zip(mine, positions, strict=True)
    ]
    weights = tuple(sample_weights[indices[place]] for place in mine) if sample_weights else ()
    return Batch(
        names=tuple(sample.name for sample in samples),
        positions=positions,
        latents=torch.stack([sample.latents for sample in samples]),
        controls=tuple(
            torch.stack(same) for same in zip(*(sample.controls for sample in samples), strict=True)
        ),
        conditionings=tuple(sample.conditioning for sample in samples),
        weights=weights if set(weights) - {1.0} else (),
        masks=batch_weights([sample.mask for sample in samples], mask or MaskSection()),
    )


def part_of(batch_size: int, share: tuple[int, int]) -> range:
    """Places in a micro-batch that one process computes: ``(index, count)`` of nearly equal parts.

    Raises:
        ValueError: When the part is empty because there are more parts than samples.
    """
    index, count = share
    mine = range(batch_size * index // count, batch_size * (index + 1) // count)
    if not mine:
        raise ValueError(f"part {index} of {count} of {batch_size} samples is empty")
    return mine
