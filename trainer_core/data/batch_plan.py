"""Which samples a step trains: a function of the seed and the step, and of nothing else.

Each epoch goes through every sample exactly as often as it is repeated, in an order of its own. A
step trains ``batch_size * micro_batches`` samples of one size; what is left of all sizes is put
together, so that at most one step of an epoch has fewer. Samples of different sizes never go
through the base in one pass: a step is cut into as many passes as it needs, and which samples it
trains does not depend on the cut (`docs/decisions/0043-steps-and-passes.md`). A share of each step
may be left to points that preserve the base (`preservation_trajectories`); they are counted here
and drawn there.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..counters import counter_seed
from ..types import Bucket

_WINDOW = 32
"""Steps' worth of shuffled samples that are sorted by text length; docs/decisions/0043."""

Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pass:
    """What goes through the base together.

    Attributes:
        indices: Samples of one size; empty where all of it preserves the base.
        turns: How often each of them was trained before in the run.
        first: Place of the first of them in the step.
        preserved: Numbers of the preservation points, counted over the whole run.
    """

    indices: tuple[int, ...]
    turns: tuple[int, ...]
    first: int
    preserved: range


@dataclass(frozen=True, slots=True)
class Part:
    """What one process computes of a pass.

    Attributes:
        turns: How often each of them was trained before in the run.
        idle: Whether it has none of the pass, and computes a sample that counts for nothing, so
            that all processes make equally many passes.
    """

    indices: tuple[int, ...]
    turns: tuple[int, ...]
    positions: tuple[int, ...]
    preserved: tuple[int, ...] = ()
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Twin:
    """A sample that is trained, once more, to hold the base at its noisy latents.

    Attributes:
        turn: How often it was trained before in the run.
        step: The step that trains it, the twin's own or one before it.
        position: Its place there. Turn or place name its noise and noise level. A second twin of
            it has a place behind all of the step, and the noise of that place.
        is_further: Whether it is such a second one.
    """

    index: int
    turn: int
    step: int
    position: int
    is_further: bool = False

    def again(self, further: int) -> Twin:
        """The same sample with the noise of a place so many further; 0 for its own."""
        return replace(self, position=self.position + further, is_further=further > 0)


@dataclass(frozen=True, slots=True)
class Group:
    """Samples that may share a pass.

    Attributes:
        batch_size: The most of them in a pass.
        own: How many of them a full step trains; the rest of it preserves the base.
        preserved: How many points of a full step preserve it.
        appearances: How many samples an epoch has of them, repeats counted.
    """

    bucket: Bucket
    indices: NDArray[np.int32]
    batch_size: int
    own: int
    preserved: int
    appearances: int

    @property
    def full_steps(self) -> int:
        """Steps of an epoch that train these samples alone."""
        return self.appearances // self.own

    @property
    def batches(self) -> int:
        """Passes through the base in an epoch, where no step cuts what is left of the group."""
        left = self.appearances % self.own
        return self.full_steps * -(-self.own // self.batch_size) + -(-left // self.batch_size)


@dataclass(frozen=True, slots=True)
class _Epoch:
    """An epoch's samples, step after step.

    Attributes:
        order: `[samples]`, codes: how often a sample was in the epoch before, times the number of
            all samples, plus its index.
        starts: `[steps + 1]`, where each step begins in ``order``.
        drawn: `[steps + 1]`, preservation points of the epoch before each step.
    """

    order: Codes
    starts: NDArray[np.int64]
    drawn: NDArray[np.int64]


class BatchPlan:
    """The order of the samples.

    Safe to ask from several threads.

    Args:
        control_counts: What else samples of a pass must agree in, such as their number of control
            images, or `CachedDataset.kinds`.
        batch_size: The most samples of a pass; one number for all, or one each.
        micro_batches: Full passes that make up a step.
        num_repeats: How often each sample appears in an epoch; one number for all, or one each. A
            sample of 0 is never trained.
        preserved_share: Share of the samples that preserves the base, 0 to below 1. Of a step of
            several samples it is the same whole number each time, at least one; single samples
            take turns where no whole number of a step's is the share.
        text_tokens: Length of each sample's text; samples of alike length then share passes, so
            that little is padded. 0 where it is not known.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        control_counts: Sequence[Hashable],
        batch_size: int | Sequence[int],
        micro_batches: int,
        num_repeats: int | Sequence[int],
        seed: int,
        preserved_share: float = 0.0,
        text_tokens: Sequence[int] | NDArray[np.int32] | None = None,
    ) -> None:
        repeats = [num_repeats] * len(buckets) if isinstance(num_repeats, int) else num_repeats
        sizes = [batch_size] * len(buckets) if isinstance(batch_size, int) else batch_size
        if not any(repeats) or min(*sizes, micro_batches) < 1 or min(repeats) < 0:
            raise ValueError("a batch plan needs samples and counts of at least 1")
        if not 0 <= preserved_share < 1 or not len(repeats) == len(sizes) == len(buckets):
            raise ValueError("a share is in [0, 1), and each sample has a number of repeats")
        self.micro_batches = micro_batches
        self.seed = seed
        self._repeats = np.asarray(repeats, dtype=np.int32)
        self._share = preserved_share
        whole = math.isclose(share := micro_batches * preserved_share, round(share))
        # Single samples take turns with preserved points; a step is then any so many of them.
        self._turns = preserved_share > 0 and max(sizes) == 1 and not (whole and micro_batches > 1)
        self.groups = self._make_groups(buckets, control_counts, sizes)
        self._group_of = np.zeros(len(buckets), dtype=np.int32)
        for number, group in enumerate(self.groups):
            self._group_of[group.indices] = number
        self._lengths = _lengths(text_tokens)
        self.samples_per_epoch = int(self._repeats.sum())
        self._lock = threading.Lock()
        # Remembered, not needed: the order of an epoch follows from its number.
        self._made = lru_cache(maxsize=2)(self._make_epoch)
        first = self._epoch(0)
        self.steps_per_epoch = len(first.starts) - 1
        self._drawn_per_epoch = int(first.drawn[-1])

    def passes(self, step: int) -> tuple[Pass, ...]:
        """Cut a step, from 1, into passes through the base."""
        if step < 1:
            raise ValueError(f"there is no step {step}")
        return tuple(self._turned(step) if self._turns else self._cut(step))

    def samples(self, step: int) -> int:
        """How many samples and preservation points a step trains."""
        if self._turns:
            return self.micro_batches
        epoch, place = self._place(step)
        own = epoch.starts[place + 1] - epoch.starts[place]
        return int(own + epoch.drawn[place + 1] - epoch.drawn[place])

    def dealt(self, step: int, share: tuple[int, int] = (0, 1)) -> range:
        """Which passes of a step one of some processes makes that deal whole passes out.

        Args:
            step: From 1.
            share: ``(index, count)``, this process and how many there are.

        Returns:
            Equally many for each; some may lie behind the last, see `part`.
        """
        index, count = share
        return range(index, -(-len(self.passes(step)) // count) * count, count)

    def part(self, step: int, micro: int, share: tuple[int, int]) -> Part:
        """What one process computes of a pass.

        Args:
            step: From 1.
            micro: The pass, from 0. One behind the last is only for processes to stay in step.
            share: ``(index, count)``: which of how many nearly equal parts.
        """
        passes = self.passes(step)
        if micro >= len(passes):
            return self._idle(passes)
        each = passes[micro]
        own = len(each.indices)
        mine = part_of(own + len(each.preserved), share)
        if not mine:
            return self._idle((each, *passes))
        places = [place for place in mine if place < own]
        return Part(
            indices=tuple(each.indices[place] for place in places),
            turns=tuple(each.turns[place] for place in places),
            positions=tuple(each.first + place for place in places),
            preserved=tuple(each.preserved[place - own] for place in mine if place >= own),
        )

    def twins(
        self, step: int, micro: int, share: tuple[int, int], wanted: Sequence[bool]
    ) -> tuple[Twin, ...]:
        """Which samples the points of a part are at, where points are at samples of the run.

        They are samples of the same step and of the size of its last pass; which of them is drawn.
        Where samples and points take turns, it is the sample that was trained last.

        Args:
            step: From 1.
            micro: The pass, from 0.
            wanted: Of each sample of the dataset, whether it is taken before others.
        """
        numbers = self.part(step, micro, share).preserved
        if not numbers:
            return ()
        if self._turns:
            return (self._twin_of_last((step - 1) * self.micro_batches + micro),)
        sources, count = self._of_last_size(step)
        sources = [each for each in sources if wanted[each.index]] or sources
        drawn = {each: counter_seed(self.seed, "twin", step, each.position) for each in sources}
        sources.sort(key=lambda each: drawn[each])
        first = next(each.preserved[0] for each in self.passes(step) if each.preserved)
        rounds = (divmod(number - first, len(sources)) for number in numbers)
        return tuple(sources[place].again(turn * count) for turn, place in rounds)

    def _twin_of_last(self, number: int) -> Twin:
        """Of the sample before one of samples and points that take turns."""
        last = number
        while self._drawn_before(last + 1) > self._drawn_before(last):
            last -= 1
        before, place = divmod(last, self.micro_batches)
        each = self.passes(before + 1)[place]
        twin = Twin(each.indices[0], each.turns[0], before + 1, place)
        return twin.again((number - last - 1) * self.micro_batches)

    def _of_last_size(self, step: int) -> tuple[list[Twin], int]:
        """A step's own samples of the size of its last ones; and how many it has in all."""
        own = [each for each in self.passes(step) if each.indices]
        last = self._group_of[own[-1].indices[-1]]
        found = [
            Twin(index, turn, step, each.first + place)
            for each in own
            if self._group_of[each.indices[0]] == last
            for place, (index, turn) in enumerate(zip(each.indices, each.turns, strict=True))
        ]
        return found, own[-1].first + len(own[-1].indices)

    def epoch(self, step: int) -> float:
        """Tell how many times the dataset was gone through when a step is done."""
        if self._turns:
            return self._own_before(step * self.micro_batches) / self.samples_per_epoch
        whole, place = divmod(step, self.steps_per_epoch)
        if not place:
            return float(whole)
        return whole + int(self._epoch(whole).starts[place]) / self.samples_per_epoch

    def _idle(self, passes: Sequence[Pass]) -> Part:
        """A sample that counts for nothing, one of the step where that has any."""
        for each in passes:
            if each.indices:
                return Part(each.indices[:1], each.turns[:1], (each.first,), idle=True)
        return Part((int(self.groups[0].indices[0]),), (0,), (0,), idle=True)

    def _cut(self, step: int) -> Iterator[Pass]:
        epoch, place = self._place(step)
        codes = epoch.order[epoch.starts[place] : epoch.starts[place + 1]]
        chosen, turns = self._decoded(codes, (step - 1) // self.steps_per_epoch)
        groups = self._group_of[chosen]
        bounds = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(chosen)]
        before = (step - 1) // self.steps_per_epoch * self._drawn_per_epoch
        drawn, end = (before + int(epoch.drawn[at]) for at in (place, place + 1))
        for start, stop in itertools.pairwise(bounds):
            size = self.groups[groups[start]].batch_size
            last = stop + (end - drawn) * (stop == len(chosen))
            for first in range(start, last, size):
                taken = min(first + size, last)
                own = slice(first, min(taken, stop))
                points = max(0, taken - max(first, stop))
                chosen_own = tuple(chosen[own].tolist()), tuple(turns[own].tolist())
                yield Pass(*chosen_own, first, range(drawn, drawn + points))
                drawn += points

    def _turned(self, step: int) -> Iterator[Pass]:
        first = (step - 1) * self.micro_batches
        for place in range(self.micro_batches):
            number = first + place
            drawn = range(self._drawn_before(number), self._drawn_before(number + 1))
            epoch, at = divmod(self._own_before(number), self.samples_per_epoch)
            codes = self._epoch(epoch).order[at : at + (not drawn)]
            own, turns = self._decoded(codes, epoch)
            yield Pass(tuple(own.tolist()), tuple(turns.tolist()), place, drawn)

    def _decoded(self, codes: Codes, epoch: int) -> tuple[Codes, Codes]:
        before, indices = np.divmod(codes, len(self._repeats))
        return indices, epoch * self._repeats[indices].astype(np.int64) + before

    def _place(self, step: int) -> tuple[_Epoch, int]:
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        return self._epoch(epoch), place

    def _drawn_before(self, number: int) -> int:
        """Points that preserve the base before one of samples and points that take turns."""
        return math.floor(number * self._share + 1e-9)

    def _own_before(self, number: int) -> int:
        return number - self._drawn_before(number)

    def _make_groups(
        self, buckets: Sequence[Bucket], kinds: Sequence[Hashable], sizes: Sequence[int]
    ) -> tuple[Group, ...]:
        found: dict[Hashable, list[int]] = {}
        for index, key in enumerate(zip(buckets, kinds, sizes, strict=True)):
            if self._repeats[index]:
                found.setdefault(key, []).append(index)
        groups: list[Group] = []
        for members in found.values():
            indices = np.asarray(members, dtype=np.int32)
            bucket, size = buckets[members[0]], sizes[members[0]]
            step = 1 if self._turns else size * self.micro_batches
            wanted = max(1, round(step * self._share)) if self._share else 0
            points = min(wanted, step - 1)
            count = int(self._repeats[indices].sum())
            groups.append(
                Group(bucket, indices, size, own=step - points, preserved=points, appearances=count)
            )
        return tuple(groups)

    def _epoch(self, number: int) -> _Epoch:
        # Behind a lock, so that what one thread makes already is not made by another as well.
        with self._lock:
            return self._made(number)

    def _make_epoch(self, epoch: int) -> _Epoch:
        chunks: list[Codes] = []
        points: list[int] = []
        left: dict[int, list[Codes]] = {}
        for number, group in enumerate(self.groups):
            order = self._ordered(epoch, number, group)
            full = group.full_steps * group.own
            chunks += list(order[:full].reshape(-1, group.own))
            points += [group.preserved] * group.full_steps
            if full < len(order):
                left.setdefault(group.batch_size, []).append(order[full:])
        for size, tails in left.items():
            own, most = self._of_size(size)
            rest = np.concatenate([tails[at] for at in self._order(len(tails), "rest", epoch)])
            for start in range(0, len(rest), own):
                chunks.append(rest[start : start + own])
                points.append(-(-most * len(chunks[-1]) // own))
        shuffled = self._order(len(chunks), "chunks", epoch)
        chosen = [chunks[at] for at in shuffled]
        starts = np.cumsum([0, *map(len, chosen)])
        drawn = np.cumsum([0, *(points[at] for at in shuffled)])
        return _Epoch(np.concatenate(chosen), starts, drawn)

    def _of_size(self, size: int) -> tuple[int, int]:
        return next((g.own, g.preserved) for g in self.groups if g.batch_size == size)

    def _ordered(self, epoch: int, number: int, group: Group) -> Codes:
        """A group's samples in the order of an epoch, as `_Epoch` has them."""
        repeats = self._repeats[group.indices]
        rounds: list[Codes] = []
        for repeat in range(int(repeats.max())):
            places = np.flatnonzero(repeats > repeat)
            order = self._order(places, "samples", epoch, number, repeat)
            rounds.append(group.indices[places[order]] + np.int64(repeat * len(self._repeats)))
        found = np.concatenate(rounds)
        if self._lengths is not None and group.batch_size > 1:
            lengths = self._lengths[found % len(self._repeats)]
            window = _WINDOW * group.own
            spans = [slice(at, at + window) for at in range(0, len(found), window)]
            found = np.concatenate(
                [found[span][np.argsort(lengths[span], kind="stable")] for span in spans]
            )
        return found

    def _order(self, places: int | NDArray[np.int64], *names: str | int) -> NDArray[np.int64]:
        # Sorted by hashes: the same on every machine and version of Python, unlike a shuffle. They
        # are those of `counter_seed`, of which all but the last counter is hashed once.
        salt = "\x1f".join(str(part) for part in (self.seed, "order", *names, ""))
        prefix = hashlib.blake2b(salt.encode(), digest_size=8)
        numbers = range(places) if isinstance(places, int) else places.tolist()
        digests = bytearray()
        for number in numbers:
            each = prefix.copy()
            each.update(b"%d" % number)
            digests += each.digest()
        return np.argsort(np.frombuffer(digests, dtype="<u8") >> 1, kind="stable")


def _lengths(tokens: Sequence[int] | NDArray[np.int32] | None) -> NDArray[np.int32] | None:
    if tokens is None:
        return None
    lengths = np.asarray(tokens, dtype=np.int32)
    return lengths if lengths.all() else None


def part_of(batch_size: int, share: tuple[int, int]) -> range:
    """Places in a pass that one process computes: ``(index, count)`` of nearly equal parts.

    Empty where there are more parts than places.
    """
    index, count = share
    return range(batch_size * index // count, batch_size * (index + 1) // count)
