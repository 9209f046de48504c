"""Every way to keep a run in memory that its settings allow, with its bytes and seconds.

Nothing is chosen here (`choose_plan`), nothing is loaded and nobody is asked: the same facts always
give the same plans.

    device  = resident blocks + slots of swapped blocks + rest of the base + adapter + activations
    seconds = what the device computes (`Budget.seconds`), or bytes that are sent / speed of the
              link where that is more; both one after the other where a single slot leaves nothing
              to send ahead

Each micro-batch sends the blocks that no slot keeps twice: for the forward and for the backward
pass. Inputs of checkpointed blocks that wait in RAM are sent there and back; blocks that are not
checkpointed take more of the device and compute less. Swapped blocks are always checkpointed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import NamedTuple

from ..config import MemorySection
from ..quantization.stored_format import StoredFormat
from .block_selection import checkpointed, evenly_spread
from .model_bytes import BaseBytes
from .step_profile import StepProfile, Work

RESERVE = 1 << 30
"""Bytes of a device that are left to libraries and the allocator."""

FULL_SPEED = 1.1
"""``auto`` changes no number of the base for a step that is faster by less than this factor."""

PRICE = {"nf4": 1.5}
"""What a format costs in exactness: ``auto`` takes one with a price for a step that is faster by
more than this factor. 4 bits round a weight ten times as much as 8 bits do."""

STAGED_BYTES_PER_S = 8e9
"""What one thread copies into pinned memory, where the weights themselves are not pinned."""

EITHER = 0
"""Of ``memory.swap_slots``, which is 1 or more in a run file: two slots or one."""

_PARTS = 4
"""Numbers of checkpointed blocks that are looked at beside all, where blocks are swapped."""

MASTERS = ("pinned", "pageable", "file")


def step_seconds(compute: float, transfer: float, slots: int = 2) -> float:
    """Predict a step.

    Args:
        compute: Seconds that it computes where it waits for nothing.
        transfer: Seconds that blocks and inputs are on their way: their bytes over the link's.
        slots: For swapped blocks; with a single one nothing is sent ahead.
    """
    return compute + transfer if slots == 1 else max(compute, transfer)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a machine has to give.

    Attributes:
        device_free: Free bytes of the device.
        ram_free: Free bytes of RAM.
        pinned_limit: Bytes of it that may be pinned.
        link_bytes_per_s: From pinned memory to the device.
        flops_per_s: What the device's products reach in the run's precision.
        file_bytes_per_s: From the disk.
        reserve: Bytes of the device that libraries and the allocator take.
        pins: Whether the device reads pinned memory faster.
        attention_per_s: FLOPs that attention reaches; None for as many as products do.
        moved_per_s: Bytes that other kernels read and write.
        launch_seconds: What the host takes for a kernel, with all that leads to it.
        converted_per_s: Bytes of kernels that mix number formats; None for as many as of others.
    """

    device_free: int
    ram_free: int
    pinned_limit: int
    link_bytes_per_s: float
    flops_per_s: float
    file_bytes_per_s: float = 3e9
    reserve: int = RESERVE
    pins: bool = True
    attention_per_s: float | None = None
    moved_per_s: float = math.inf
    launch_seconds: float = 0.0
    converted_per_s: float | None = None

    def seconds(self, work: Work) -> float:
        """Predict what some work takes: the device's time, or the host's where that is longer."""
        attention = work.attention / (self.attention_per_s or self.flops_per_s)
        moved = work.moved / self.moved_per_s
        moved += work.converted / (self.converted_per_s or self.moved_per_s)
        device = work.flops / self.flops_per_s + attention + moved
        return max(device, work.launches * self.launch_seconds)


@dataclass(frozen=True, slots=True)
class KeptFormat:
    """A base in one format, as its files give it.

    Attributes:
        base: Bytes of its weights.
        in_file: Whether the base's file holds the very bytes, so that it can be mapped.
        copied: Bytes of RAM that are taken while it is loaded to be swapped: what the file has
            otherwise.
        copied_resident: Those that are taken while it is loaded as a whole to the device.
        stored: What most of its packed weights are kept in; None where all are dense.
    """

    base: BaseBytes
    in_file: bool = False
    copied: int = 0
    copied_resident: int = 0
    stored: StoredFormat | None = None


class FormatSizes(NamedTuple):
    """What a base needs in one format: its weights, and what a step takes beside them."""

    kept: KeptFormat
    activations: StepProfile


@dataclass(frozen=True, slots=True)
class StepSizes:
    """What a run needs.

    Attributes:
        formats: By name, the most exact first.
        adapter: Bytes of factors, gradients and the optimizer's state.
    """

    formats: Mapping[str, FormatSizes]
    adapter: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where a run keeps what.

    Attributes:
        rank: Place of the format among all; 0 is the most exact.
        swap_slots: Slots for blocks of one layout; 0 without swapped blocks.
        master: Where swapped blocks lie: ``pinned``, ``pageable``, ``file``; else ``none``.
        checkpoint_inputs: Where inputs of checkpointed blocks wait: ``device`` or ``ram``.
        weights: Bytes of the base that stay on the device.
        ring: Bytes of the slots.
        adapter: Bytes of factors, gradients and the optimizer's state.
        activations: Bytes of a step beside those.
        ram: Bytes of RAM, at the most: while the base is loaded, or later.
        pinned: Bytes of it that are pinned.
        compute: Predicted seconds that a step computes.
        transfer: Predicted seconds that a step's blocks and inputs are on their way.
        full: Predicted seconds of a step of which nothing is waited for, all blocks checkpointed.
    """

    base_format: str
    rank: int
    blocks: int
    blocks_to_swap: int
    swap_slots: int
    master: str
    blocks_to_checkpoint: int
    checkpoint_inputs: str
    weights: int
    ring: int
    adapter: int
    activations: int
    ram: int
    pinned: int
    compute: float
    transfer: float
    full: float

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether any block computes its activations again."""
        return self.blocks_to_checkpoint > 0

    @property
    def device(self) -> int:
        """Bytes on the device, at the peak."""
        return self.weights + self.ring + self.adapter + self.activations

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return step_seconds(self.compute, self.transfer, self.swap_slots)

    @property
    def pace(self) -> float:
        """Seconds of a step times the format's price; all that is near full speed counts alike."""
        return max(self.seconds, FULL_SPEED * self.full) * PRICE.get(self.base_format, 1.0)

    def fits(self, budget: Budget) -> bool:
        """Whether there is room for it."""
        return (
            self.device + budget.reserve <= budget.device_free
            and self.ram <= budget.ram_free
            and self.pinned <= budget.pinned_limit
        )


def possible_plans(
    sizes: StepSizes, settings: MemorySection, budget: Budget
) -> Iterator[MemoryPlan]:
    """All plans that the settings allow, whether they fit or not."""
    for rank, (name, each) in enumerate(sizes.formats.items()):
        if settings.base_format not in {"auto", name}:
            continue
        full = budget.seconds(each.activations.work)
        resident = MemoryPlan(
            base_format=name,
            rank=rank,
            blocks=len(each.kept.base.blocks),
            blocks_to_swap=0,
            swap_slots=0,
            master="none",
            blocks_to_checkpoint=0,
            checkpoint_inputs="device",
            weights=each.kept.base.total,
            ring=0,
            adapter=sizes.adapter,
            activations=0,
            ram=each.kept.copied_resident,
            pinned=0,
            compute=full,
            transfer=0.0,
            full=full,
        )
        terms = cache(partial(_terms, each.activations, resident.blocks))
        plans = [] if settings.blocks_to_swap else [resident]
        for plan in chain(plans, _swapped(resident, each, settings, budget)):
            yield from _checkpointed(
                plan, terms, each.activations, settings=settings, budget=budget
            )


def _terms(step: StepProfile, blocks: int, away: int, count: int) -> tuple[int, int, int, Work]:
    """Activations with inputs on the device and in RAM, bytes of these, and work."""
    chosen = frozenset(checkpointed(count, evenly_spread(away, blocks), blocks))
    bytes_of = (step.activations(chosen), step.activations(chosen, in_ram=True))
    return *bytes_of, step.inputs(chosen), step.computed(chosen)


def _checkpointed(
    plan: MemoryPlan,
    terms: Callable[[int, int], tuple[int, int, int, Work]],
    step: StepProfile,
    settings: MemorySection,
    budget: Budget,
) -> Iterator[MemoryPlan]:
    """A plan with each number of checkpointed blocks, and with their inputs here and there."""
    blocks, away, counts = plan.blocks, plan.blocks_to_swap, {plan.blocks}
    if not settings.gradient_checkpointing:
        counts = {0}
    elif not step.blocks:
        pass  # what a block would keep is only guessed
    elif settings.blocks_to_checkpoint is not None:
        counts = {min(settings.blocks_to_checkpoint, blocks)}
    elif not away:
        counts = set(range(blocks + 1))
    elif plan.master == "pinned" and plan.swap_slots > 1:
        counts |= {away + (blocks - away) * part // _PARTS for part in range(_PARTS)}
    # Where the device computes in RAM, nothing is gained by keeping anything elsewhere in it.
    apart = math.isfinite(budget.link_bytes_per_s)
    for count in counts:
        if count < away:
            continue
        # Which blocks are swapped does not matter where all are checkpointed.
        here, there, inputs, work = terms(0 if count == blocks else away, count)
        for place in ("device", "ram") if count and apart else ("device",):
            if settings.checkpoint_inputs not in {"auto", place}:
                continue
            moved = inputs if place == "ram" else 0
            yield replace(
                plan,
                blocks_to_checkpoint=count,
                checkpoint_inputs=place,
                activations=there if moved else here,
                ram=plan.ram + moved,
                pinned=plan.pinned + (moved if budget.pins else 0),
                compute=budget.seconds(work),
                transfer=plan.transfer + 2 * moved * step.micro_batches / budget.link_bytes_per_s,
            )


def _swapped(
    resident: MemoryPlan, sizes: FormatSizes, settings: MemorySection, budget: Budget
) -> Iterator[MemoryPlan]:
    """The same with swapped blocks."""
    kept, base = sizes.kept, sizes.kept.base
    blocks = len(base.blocks)
    wanted = settings.blocks_to_swap
    counts = range(1, blocks + 1) if wanted is None else [min(wanted, blocks)] if wanted else []
    possible = {"pinned": budget.pins, "pageable": True, "file": kept.in_file}
    masters = [each for each in MASTERS if settings.master in {"auto", each} and possible[each]]
    for count in counts:
        swapped = evenly_spread(count, blocks)
        away = sum(base.blocks[each] for each in swapped)
        groups = Counter(base.groups[each] for each in swapped)
        largest = max(base.blocks[each] for each in swapped)
        for slots in (2, 1) if settings.swap_slots == EITHER else (settings.swap_slots,):
            ring = sum(base.blocks[g] * min(slots, n) for g, n in groups.items())
            sent = sum(2 * base.blocks[g] * max(0, n - slots) for g, n in groups.items())
            sent *= sizes.activations.micro_batches
            if wanted is None and ring >= away:
                continue
            # What is not pinned itself goes through two pinned pieces of a block.
            stage = 2 * largest if budget.pins else 0
            # Weights that are views into the file are copied from there, the others one by one.
            loading = kept.copied + (away if kept.in_file else largest)
            for master in masters:
                yield replace(
                    resident,
                    blocks_to_swap=count,
                    swap_slots=slots,
                    master=master,
                    weights=resident.weights - away,
                    ring=ring,
                    ram={
                        "pinned": max(away, loading),
                        "pageable": max(away + stage, loading),
                        "file": max(stage, kept.copied),
                    }[master],
                    pinned=away if master == "pinned" else stage,
                    transfer=sent / link_speed(master, budget),
                )


def link_speed(master: str, budget: Budget) -> float:
    """Bytes per second that swapped blocks come with, from where they lie."""
    link = budget.link_bytes_per_s
    if master == "pinned":
        return link
    staged = min(link, STAGED_BYTES_PER_S)
    return staged if master == "pageable" else min(staged, budget.file_bytes_per_s)


_PASSES = 3
"""What a checkpointed block computes: forward, forward again, and backward for the inputs alone."""


@dataclass(frozen=True, slots=True)
class StepPace:
    """How fast a machine is with a step.

    Attributes:
        full: Seconds that it computes where all blocks are checkpointed.
        link_bytes_per_s: What swapped blocks come with.
        micro_batches: How many a step has; each sends the swapped blocks anew.
    """

    full: float
    link_bytes_per_s: float
    micro_batches: int = 1

    @classmethod
    def of(cls, plan: MemoryPlan, budget: Budget, micro_batches: int = 1) -> StepPace:
        """What is known of a plan.

        Args:
            micro_batches: Of a step, all of which `MemoryPlan.full` counts.
        """
        usual = "pinned" if budget.pins else "pageable"
        master = plan.master if plan.blocks_to_swap else usual
        return cls(plan.full, link_speed(master, budget), micro_batches)

    def seconds(self, checkpointed: float, sent: int, passes: int, slots: int) -> float:
        """Predict a step.

        Args:
            checkpointed: The share of the blocks that compute their activations again.
            sent: Bytes that a forward and a backward pass send.
            passes: Parts in which a micro-batch goes through the base.
            slots: ``memory.swap_slots``; with a single one nothing is sent ahead.
        """
        compute = self.full * (_PASSES - 1 + checkpointed) / _PASSES
        transfer = self.micro_batches * passes * sent / self.link_bytes_per_s
        return step_seconds(compute, transfer, slots)
