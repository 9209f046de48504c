"""`rank_plans`: where a run keeps what, from what is known of the model and of the machine.

Nothing is loaded and nobody is asked here: the same facts always give the same plans.

    device  = resident blocks + slots of swapped blocks + rest of the base + adapter + activations
    seconds = FLOPs / speed, or bytes that are sent / speed of the link where that is more; both
              one after the other where a single slot leaves nothing to send ahead

Each micro-batch sends the blocks that no slot keeps twice: for the forward and for the backward
pass. Inputs of checkpointed blocks that wait in RAM are sent there and back; blocks that are not
checkpointed take more of the device and compute less. Swapped blocks are always checkpointed.

Plans have one fixed order, whatever is free, and the first that fits is taken. So more free memory
never gives a slower plan, and less never one that needs more of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Literal

from ..errors import RunError
from ..printable import gibibytes
from .block_selection import checkpointed, evenly_spread
from .model_bytes import BaseBytes
from .step_profile import StepProfile

Aim = Literal["auto", "fastest", "smallest"]

RESERVE = 1 << 30
"""Bytes of a device that are left to libraries and the allocator."""

FULL_SPEED = 1.1
"""``auto`` changes no number of the base for a step that is faster by less than this factor."""

PRICE = {"nf4": 1.5}
"""What a format costs in exactness: ``auto`` takes one with a price for a step that is faster by
more than this factor. 4 bits round a weight ten times as much as 8 bits do."""

STAGED_BYTES_PER_S = 8e9
"""What one thread copies into pinned memory, where the weights themselves are not pinned."""

_COARSE = 0.1
"""Of the full speed: ``auto`` sends nothing more for what makes a step faster by less."""

_PARTS = 4
"""Numbers of checkpointed blocks that are looked at beside all, where blocks are swapped."""

_MASTERS = ("pinned", "pageable", "file")


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
        flops_per_s: What the device reaches in the run's precision.
        file_bytes_per_s: From the disk.
        reserve: Bytes of the device that libraries and the allocator take.
        pins: Whether the device reads pinned memory faster.
    """

    device_free: int
    ram_free: int
    pinned_limit: int
    link_bytes_per_s: float
    flops_per_s: float
    file_bytes_per_s: float = 3e9
    reserve: int = RESERVE
    pins: bool = True


@dataclass(frozen=True, slots=True)
class FormatSizes:
    """What a base needs in one format.

    Attributes:
        base: Bytes of its weights.
        activations: What a step takes beside base and adapter, and how much it computes.
        in_file: Whether the base's file holds the very bytes, so that it can be mapped.
        copied: Bytes of RAM that are taken while it is loaded to be swapped: what the file has
            otherwise.
        copied_resident: Those that are taken while it is loaded as a whole to the device.
    """

    base: BaseBytes
    activations: StepProfile
    in_file: bool = False
    copied: int = 0
    copied_resident: int = 0


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
class PlanSettings:
    """What the run file's ``memory`` section asks for; None and ``auto`` leave the choice.

    Attributes:
        plan: What is best: as fast as can be, or as small; ``auto`` is as fast, but takes a format
            that rounds the base's weights only where that is worth it (`FULL_SPEED`).
        base_format: How blocks are kept.
        blocks_to_swap: How many are off the device.
        swap_slots: Slots for blocks of one layout.
        master: Where swapped blocks lie.
        gradient_checkpointing: Whether activations may be computed again.
        blocks_to_checkpoint: How many blocks do so.
        checkpoint_inputs: Where their inputs wait: ``device`` or ``ram``.
    """

    plan: Aim = "auto"
    base_format: str = "auto"
    blocks_to_swap: int | None = None
    swap_slots: int | None = None
    master: str = "auto"
    gradient_checkpointing: bool = True
    blocks_to_checkpoint: int | None = None
    checkpoint_inputs: str = "auto"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where a run keeps what.

    Attributes:
        base_format: How the blocks are kept.
        rank: Place of the format among all; 0 is the most exact.
        blocks: How many there are.
        blocks_to_swap: Blocks that are off the device.
        swap_slots: Slots for blocks of one layout; 0 without swapped blocks.
        master: Where swapped blocks lie: ``pinned``, ``pageable``, ``file``; else ``none``.
        blocks_to_checkpoint: Blocks that compute their activations again.
        checkpoint_inputs: Where the inputs of these wait: ``device`` or ``ram``.
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


def rank_plans(sizes: StepSizes, settings: PlanSettings, budget: Budget) -> list[MemoryPlan]:
    """All plans that fit, the best first.

    Raises:
        RunError: When none fits; it names what would.
    """
    found = [plan for plan in _plans(sizes, settings, budget) if plan.fits(budget)]
    if not found:
        raise _too_large(sizes, settings, budget)
    return sorted(found, key=lambda plan: _order(plan, settings.plan))


def alternatives(plans: list[MemoryPlan], count: int = 3) -> list[MemoryPlan]:
    """The best plan, and the best of other kinds: another format, or swapping instead of not.

    Args:
        plans: In their order.
        count: Of how many.
    """
    found: dict[object, MemoryPlan] = {}
    for plan in plans:
        kind = plan.base_format, plan.blocks_to_swap > 0
        found.setdefault(kind, plan)
    return list(found.values())[:count]


def _order(plan: MemoryPlan, aim: Aim) -> tuple[object, ...]:
    rest = (
        plan.seconds,
        plan.rank,
        plan.blocks_to_swap,
        (*_MASTERS, "none").index(plan.master),
        plan.checkpoint_inputs,
        plan.device,
        plan.swap_slots,
    )
    if aim == "smallest":
        return plan.device, *rest
    if aim == "fastest":
        return rest
    # Nearly the same speed is not worth a link that is busy all the time.
    coarse = plan.seconds // (_COARSE * plan.full)
    return plan.pace, plan.rank, coarse, plan.checkpoint_inputs, plan.blocks_to_swap, *rest


def _plans(sizes: StepSizes, settings: PlanSettings, budget: Budget) -> Iterator[MemoryPlan]:
    """All plans that the settings allow, whether they fit or not."""
    for rank, (name, each) in enumerate(sizes.formats.items()):
        if settings.base_format not in {"auto", name}:
            continue
        full = each.activations.flops / budget.flops_per_s
        resident = MemoryPlan(
            base_format=name,
            rank=rank,
            blocks=len(each.base.blocks),
            blocks_to_swap=0,
            swap_slots=0,
            master="none",
            blocks_to_checkpoint=0,
            checkpoint_inputs="device",
            weights=each.base.total,
            ring=0,
            adapter=sizes.adapter,
            activations=0,
            ram=each.copied_resident,
            pinned=0,
            compute=full,
            transfer=0.0,
            full=full,
        )
        terms = cache(partial(_terms, each.activations, resident.blocks))
        plans = [] if settings.blocks_to_swap else [resident]
        for plan in chain(plans, _swapped(resident, each, settings, budget)):
            yield from _checkpointed(plan, terms, each.activations, settings, budget)


def _terms(step: StepProfile, blocks: int, away: int, count: int) -> tuple[int, int, int, int]:
    """Activations with inputs on the device and in RAM, bytes of these, and FLOPs."""
    chosen = frozenset(checkpointed(count, evenly_spread(away, blocks), blocks))
    bytes_of = (step.activations(chosen), step.activations(chosen, in_ram=True))
    return *bytes_of, step.inputs(chosen), step.computed(chosen)


def _checkpointed(
    plan: MemoryPlan,
    terms: Callable[[int, int], tuple[int, int, int, int]],
    step: StepProfile,
    settings: PlanSettings,
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
        here, there, inputs, flops = terms(0 if count == blocks else away, count)
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
                compute=flops / budget.flops_per_s,
                transfer=plan.transfer + 2 * moved * step.micro_batches / budget.link_bytes_per_s,
            )


def _swapped(
    resident: MemoryPlan, sizes: FormatSizes, settings: PlanSettings, budget: Budget
) -> Iterator[MemoryPlan]:
    """The same with swapped blocks."""
    base, blocks = sizes.base, len(sizes.base.blocks)
    wanted = settings.blocks_to_swap
    counts = range(1, blocks + 1) if wanted is None else [min(wanted, blocks)] if wanted else []
    masters = [
        each
        for each in _MASTERS
        if settings.master in {"auto", each} and _possible(each, sizes, budget)
    ]
    for count in counts:
        swapped = evenly_spread(count, blocks)
        away = sum(base.blocks[each] for each in swapped)
        groups = Counter(base.groups[each] for each in swapped)
        largest = max(base.blocks[each] for each in swapped)
        for slots in (2, 1) if settings.swap_slots is None else (settings.swap_slots,):
            ring = sum(base.blocks[g] * min(slots, n) for g, n in groups.items())
            sent = sum(2 * base.blocks[g] * max(0, n - slots) for g, n in groups.items())
            sent *= sizes.activations.micro_batches
            if wanted is None and ring >= away:
                continue
            # What is not pinned itself goes through two pinned pieces of a block.
            stage = 2 * largest if budget.pins else 0
            # Weights that are views into the file are copied from there, the others one by one.
            loading = sizes.copied + (away if sizes.in_file else largest)
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
                        "file": max(stage, sizes.copied),
                    }[master],
                    pinned=away if master == "pinned" else stage,
                    transfer=sent / link_speed(master, budget),
                )


def _possible(master: str, sizes: FormatSizes, budget: Budget) -> bool:
    return {"pinned": budget.pins, "pageable": True, "file": sizes.in_file}[master]


def link_speed(master: str, budget: Budget) -> float:
    """Bytes per second that swapped blocks come with, from where they lie."""
    link = budget.link_bytes_per_s
    if master == "pinned":
        return link
    staged = min(link, STAGED_BYTES_PER_S)
    return staged if master == "pageable" else min(staged, budget.file_bytes_per_s)


_FREE = {
    "blocks_to_swap": None,
    "master": "auto",
    "swap_slots": None,
    "gradient_checkpointing": True,
    "blocks_to_checkpoint": None,
    "checkpoint_inputs": "auto",
    "base_format": "auto",
}
"""Settings that may make a run smaller, to the value that leaves the choice; that which may round
the base's weights comes last."""


def _too_large(sizes: StepSizes, settings: PlanSettings, budget: Budget) -> RunError:
    """Say what would fit: the fewest settings that have to change, and to what."""
    smallest = _smallest(sizes, settings, budget)
    needs = "no plan" if smallest is None else f"the smallest plan, {describe(smallest)}, needs"
    found = f"{needs} {_lacking(smallest, budget)}, with the memory settings of the run file"
    changed = [{name: value} for name, value in _FREE.items()]
    for change in (*changed, dict(_FREE)):
        relaxed = replace(settings, **change)  # pyright: ignore[reportArgumentType]
        fitting = [plan for plan in _plans(sizes, relaxed, budget) if plan.fits(budget)]
        if fitting:
            best = min(fitting, key=lambda plan: _order(plan, settings.plan))
            values = [f"memory.{name} to {_shown(getattr(best, name))}" for name in change]
            remedy = f"Set {', '.join(values)}: {describe(best)}."
            return RunError(found, "a plan that fits", remedy)
    least = _smallest(sizes, replace(settings, **_FREE), budget)  # pyright: ignore[reportArgumentType]
    more = "" if least is None else f" (at the least {_lacking(least, budget)})"
    return RunError(
        found,
        f"more memory{more}",
        "Lower dataset.resolution, training.batch_size or adapter.rank, close other programs that "
        "use this memory, or save the run file and train on a larger machine.",
    )


def _smallest(sizes: StepSizes, settings: PlanSettings, budget: Budget) -> MemoryPlan | None:
    plans = _plans(sizes, settings, budget)

    def missing(plan: MemoryPlan) -> tuple[int, int]:
        over = max(0, plan.ram - budget.ram_free) + max(0, plan.pinned - budget.pinned_limit)
        return plan.device + over, plan.ram

    return min(plans, key=missing, default=None)


def _lacking(plan: MemoryPlan | None, budget: Budget) -> str:
    if plan is None:
        return "is possible"
    needed = {
        "VRAM": (plan.device + budget.reserve, budget.device_free),
        "RAM": (plan.ram, budget.ram_free),
        "pinned RAM": (plan.pinned, budget.pinned_limit),
    }
    parts = [
        f"{gibibytes(need)} of {name}, of which {gibibytes(free)} are free"
        for name, (need, free) in needed.items()
        if need > free
    ]
    return " and ".join(parts) or f"{gibibytes(plan.device)} of VRAM"


def describe(plan: MemoryPlan) -> str:
    """A plan in a few words."""
    swap = f"{plan.blocks_to_swap} blocks swapped" if plan.blocks_to_swap else "nothing swapped"
    where = "" if plan.master == "none" else f" ({plan.master})"
    kept = plan.blocks_to_checkpoint
    again = "" if kept == plan.blocks else f", {kept} of {plan.blocks} checkpointed"
    inputs = ", inputs in RAM" if plan.checkpoint_inputs == "ram" else ""
    return f"{plan.base_format}, {swap}{where}{again}{inputs}, {gibibytes(plan.device)}"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
