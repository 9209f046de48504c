"""Which samples make up a batch: a function of the seed and the step, and of nothing else.

Each epoch goes through every sample (``num_repeats`` times) in an order of its own. Samples of
different sizes never share a micro-batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

import torch

from ..counters import counter_seed
from ..types import Batch, Bucket
from .cached import CachedDataset

_Chunk = tuple[int, ...]


class BatchPlan:
    """The order of the samples.

    Args:
        buckets: Size of each sample.
        control_counts: What else samples of a micro-batch must agree in: their number of control
            pictures or, where those have sizes of their own, `CachedDataset.control_buckets`.
        batch_size: Samples per micro-batch.
        micro_batches: Micro-batches per step.
        num_repeats: How often each sample appears in an epoch.
        seed: The run's seed.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        control_counts: Sequence[Hashable],
        batch_size: int,
        micro_batches: int,
        num_repeats: int,
        seed: int,
    ) -> None:
        if not buckets or min(batch_size, micro_batches, num_repeats) < 1:
            raise ValueError("a batch plan needs samples and counts of at least 1")
        groups: dict[Hashable, list[int]] = {}
        for index, kind in enumerate(zip(buckets, control_counts, strict=True)):
            groups.setdefault(kind, []).append(index)
        self._groups = tuple(tuple(group) for group in groups.values())
        self.batch_size = batch_size
        self.micro_batches = micro_batches
        self.num_repeats = num_repeats
        self.seed = seed
        self.chunks_per_epoch = sum(
            -(-len(group) * num_repeats // batch_size) for group in self._groups
        )
        # Remembered, not needed: the order of an epoch follows from its number.
        self._epoch_chunks = lru_cache(maxsize=2)(self._make_epoch)

    def indices(self, step: int, micro: int) -> tuple[int, ...]:
        """Tell which samples are trained.

        Args:
            step: Optimizer step, from 1.
            micro: Micro-batch within the step, from 0.

        Returns:
            `batch_size` indices of samples that agree in size and controls.
        """
        if step < 1 or not 0 <= micro < self.micro_batches:
            raise ValueError(f"there is no micro-batch {micro} of step {step}")
        epoch, place = divmod((step - 1) * self.micro_batches + micro, self.chunks_per_epoch)
        return self._epoch_chunks(epoch)[place]

    def epoch(self, step: int) -> float:
        """Tell how many times the dataset was gone through when a step is done."""
        return step * self.micro_batches / self.chunks_per_epoch

    def _make_epoch(self, epoch: int) -> tuple[_Chunk, ...]:
        chunks = [
            chunk
            for number, group in enumerate(self._groups)
            for chunk in self._make_chunks(epoch, number, group)
        ]
        return tuple(chunks[place] for place in self._order(len(chunks), "chunks", epoch))

    def _make_chunks(self, epoch: int, number: int, group: Sequence[int]) -> list[_Chunk]:
        order = [
            group[place]
            for repeat in range(self.num_repeats)
            for place in self._order(len(group), "samples", epoch, number, repeat)
        ]
        size = self.batch_size
        chunks = [tuple(order[start : start + size]) for start in range(0, len(order), size)]
        chunks[-1] = self._fill(chunks[-1], group, epoch, number)
        return chunks

    def _fill(self, chunk: _Chunk, group: Sequence[int], epoch: int, number: int) -> _Chunk:
        """Complete a group's last chunk, with samples that it does not hold yet if there are."""
        filled = list(chunk)
        turn = 0
        while len(filled) < self.batch_size:
            drawn = [group[p] for p in self._order(len(group), "fill", epoch, number, turn)]
            fresh = [index for index in drawn if turn or index not in chunk]
            filled += fresh[: self.batch_size - len(filled)]
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
) -> Batch:
    """Read one micro-batch, or one process's share of it.

    Args:
        dataset: The encoded samples.
        plan: Their order.
        step: Optimizer step, from 1.
        micro: Micro-batch within the step, from 0.
        caption_dropout: Probability of an empty caption, 0 to 1.
        seed: The run's seed.
        share: ``(index, count)``: which of how many nearly equal parts to read.

    Returns:
        The samples; `positions` count over the whole step.

    Raises:
        ValueError: When the part is empty because there are more parts than samples.
        StorageError: When a cached file is damaged.
    """
    index, count = share
    indices = plan.indices(step, micro)
    mine = range(len(indices) * index // count, len(indices) * (index + 1) // count)
    if not mine:
        raise ValueError(f"part {index} of {count} of {len(indices)} samples is empty")
    positions = tuple(micro * plan.batch_size + place for place in mine)
    samples = [dataset.load(indices[place]) for place in mine]
    return Batch(
        names=tuple(sample.name for sample in samples),
        positions=positions,
        latents=torch.stack([sample.latents for sample in samples]),
        controls=tuple(
            torch.stack(same) for same in zip(*(sample.controls for sample in samples), strict=True)
        ),
        conditionings=tuple(
            sample.empty_conditioning
            if _is_dropped(caption_dropout, seed, step, position)
            else sample.conditioning
            for sample, position in zip(samples, positions, strict=True)
        ),
    )


def _is_dropped(rate: float, seed: int, step: int, position: int) -> bool:
    return counter_seed(seed, "caption_dropout", step, position) < rate * 2.0**63
