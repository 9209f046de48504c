"""Chooses which format a base is kept in, and how many of its blocks are swapped and checkpointed.

From the base's files, and what is free, to memory settings without a gap. No weight is read, and
nothing is known here of a run: the caller says what else a step takes. `possible_plans` computes
what there is to choose from; which blocks they are, by number, says `block_selection`.

Plans have one fixed order, whatever is free, and the first that fits is taken. So more free memory
never gives a slower plan, and less never one that needs more of it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ..config import MemorySection
from ..config.yaml_dialect import format_value
from ..errors import RunError
from ..printable import gibibytes
from ..quantization.formats import FORMATS
from ..quantization.stored_format import StoredFormat
from ..weights.kept_weights import kept_weights
from ..weights.layer_packing import Packing
from .block_selection import swapped_blocks
from .empty_base import EmptyBase
from .model_bytes import base_bytes
from .possible_plans import (
    EITHER,
    MASTERS,
    Budget,
    FormatSizes,
    KeptFormat,
    MemoryPlan,
    StepSizes,
    possible_plans,
)
from .step_profile import StepProfile, Work

_COARSE = 0.1
"""Of the full speed: ``auto`` sends nothing more for what makes a step faster by less."""

_PLENTY = 0.1
"""Share of the free memory below which a base's weights leave nothing to choose."""

_WORTH = 0.9
"""A format is a choice where it takes less than this share of the more exact one before it."""


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """How a base is kept.

    Attributes:
        memory: The memory settings, of which none is left open.
        plans: The plan that is taken, and the best of other kinds; none where nothing was planned.
        budget: What it was planned for.
        guessed: Why a step could not be simulated, and all but the weights is guessed; else empty.
    """

    memory: MemorySection
    plans: tuple[MemoryPlan, ...] = ()
    budget: Budget | None = None
    guessed: str = ""


SizesOf = Callable[[Mapping[str, KeptFormat]], StepSizes]
"""Gives what a step needs in some formats, in the same order."""


def plan_of_settings(memory: MemorySection, held: str | None = None) -> PlanChoice:
    """Take the settings as they stand: what is open is dense, and on the device.

    Args:
        held: The format that takes the place of dense.
    """
    kept = memory.base_format if memory.base_format != "auto" else held or "dense"
    swapped = memory.blocks_to_swap or 0
    return PlanChoice(memory.model_copy(update={"base_format": kept, "blocks_to_swap": swapped}))


def choose_plan(
    memory: MemorySection,
    base: EmptyBase,
    dtype: torch.dtype,
    budget: Budget,
    sizes_of: SizesOf,
    *,
    swappable: bool = True,
    held: str | None = None,
) -> PlanChoice:
    """Choose what the settings leave open.

    Args:
        memory: The settings; ``plan`` is not off.
        base: The base, in no library's format.
        sizes_of: What a step needs; see `guessed_step_sizes` where only the weights are known.
        swappable: Whether blocks may be swapped where the settings do not ask for it.
        held: The format that is kept to as long as it fits, if the settings name none.

    Raises:
        RunError: When nothing fits; it names what would.
        ConfigError: When more blocks are to be swapped than there are.
        BaseModelError: When the base's files are damaged, or cannot be kept as the settings say.
    """
    swapped_blocks(base.transformer, base.family.layers.repeated_blocks, memory)
    settings = memory
    if memory.blocks_to_swap is None and not swappable:
        settings = memory.model_copy(update={"blocks_to_swap": 0})
    formats: dict[str, KeptFormat] = {}
    wanted = held if memory.base_format == "auto" else memory.base_format
    if wanted is not None:
        formats[wanted] = kept_format(base, wanted, dtype)
        kept_to = settings.model_copy(update={"base_format": wanted})
        with contextlib.suppress(RunError):
            return _choice(memory, rank_plans(sizes_of(formats), kept_to, budget), budget)
    # Others are taken, or named by the error as what would fit.
    formats = {**(formats if settings.base_format != "auto" else {}), **auto_formats(base, dtype)}
    first = next(iter(formats.values()))
    if settings.plan != "smallest" and first.base.total < budget.device_free * _PLENTY:
        formats = dict([next(iter(formats.items()))])
        settings = settings.model_copy(update={"blocks_to_swap": settings.blocks_to_swap or 0})
    return _choice(memory, rank_plans(sizes_of(formats), settings, budget), budget)


def guessed_step_sizes(rest: int, flops: int, micro_batches: int = 1) -> SizesOf:
    """What a step needs where everything but the weights is only guessed.

    Args:
        rest: Bytes beside the weights.
    """

    def sizes_of(formats: Mapping[str, KeptFormat]) -> StepSizes:
        step = StepProfile((), rest, 0, work=Work(flops), micro_batches=micro_batches)
        return StepSizes({name: FormatSizes(each, step) for name, each in formats.items()}, 0)

    return sizes_of


def auto_formats(base: EmptyBase, dtype: torch.dtype) -> dict[str, KeptFormat]:
    """What may be chosen, the most exact first: the weights as the file has them, or rounded.

    Of two formats that take about the same (fp8 and int8) the first of `FORMATS` stands for both.
    """
    file = kept_format(base, "file", dtype)
    found = {"dense" if file.stored is None else "file": file}
    if file.stored is None:
        found["dense"] = kept_format(base, "dense", dtype)
    rounded = {
        name: kept_format(base, name, dtype) for name, each in FORMATS.items() if each.planned
    }
    for name, each in sorted(rounded.items(), key=lambda each: -each[1].base.total):
        last = next(reversed(found.values()))
        if each.base.total < _WORTH * last.base.total:
            found[name] = each
    return found


def kept_format(base: EmptyBase, name: str, dtype: torch.dtype) -> KeptFormat:
    """A base in the format of ``memory.base_format``.

    Raises:
        BaseModelError: When the base's files are damaged, or cannot be kept so.
    """
    lists, location = base.family.layers.repeated_blocks, base.location
    packing = Packing.of(name, lists)
    kept = kept_weights(location, base.family.files.single_file, packing, dtype)
    known = {weight: each.size for weight, each in kept.items()}
    of_block: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    of_format: defaultdict[StoredFormat, int] = defaultdict(int)
    for weight, each in kept.items():
        inside = next((n for n in lists if weight.startswith(f"{n}.")), None)
        if inside is not None:
            number = weight.removeprefix(f"{inside}.").partition(".")[0]
            of_block[f"{inside}.{number}"][each.mapped] += each.size
        if each.stored is not None:
            of_format[each.stored] += each.size
    copied = sum(each.size for each in kept.values() if not each.mapped)
    return KeptFormat(
        base=base_bytes(base.transformer, lists, dtype, known=known),
        stored=max(of_format, key=lambda each: of_format[each], default=None),
        # `MappedMaster` asks for half of a block.
        in_file=bool(of_block) and all(there >= away for away, there in of_block.values()),
        copied=copied,
        # Diffusers reads a whole folder on the CPU; everything else is read where it is used.
        copied_resident=copied if location.file is None and packing is None else 0,
    )


def rank_plans(sizes: StepSizes, settings: MemorySection, budget: Budget) -> list[MemoryPlan]:
    """All plans that fit, the best first.

    Raises:
        RunError: When none fits; it names what would.
    """
    found = [plan for plan in possible_plans(sizes, settings, budget) if plan.fits(budget)]
    if not found:
        raise _too_large(sizes, settings, budget)
    return sorted(found, key=lambda plan: _order(plan, settings.plan))


def alternatives(plans: list[MemoryPlan], count: int = 3) -> list[MemoryPlan]:
    """The best of ranked plans, and of each other kind: another format, or swapping or not."""
    found: dict[object, MemoryPlan] = {}
    for plan in plans:
        kind = plan.base_format, plan.blocks_to_swap > 0
        found.setdefault(kind, plan)
    return list(found.values())[:count]


def _order(plan: MemoryPlan, aim: str) -> tuple[object, ...]:
    rest = (
        plan.seconds,
        plan.rank,
        plan.blocks_to_swap,
        (*MASTERS, "none").index(plan.master),
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


_FREE = {
    "blocks_to_swap": None,
    "master": "auto",
    "swap_slots": EITHER,
    "gradient_checkpointing": True,
    "blocks_to_checkpoint": None,
    "checkpoint_inputs": "auto",
    "base_format": "auto",
}
"""Settings that may make a run smaller, to the value that leaves the choice; that which may round
the base's weights comes last."""


def _too_large(sizes: StepSizes, settings: MemorySection, budget: Budget) -> RunError:
    """Say what would fit: the fewest settings that have to change, and to what."""
    smallest = _smallest(sizes, settings, budget)
    needs = (
        "no plan" if smallest is None else f"the smallest plan, {plan_in_words(smallest)}, needs"
    )
    found = f"{needs} {_lacking(smallest, budget)}, with the memory settings of the run file"
    changed = [{name: value} for name, value in _FREE.items()]
    for change in (*changed, dict(_FREE)):
        relaxed = settings.model_copy(update=change)
        fitting = [plan for plan in possible_plans(sizes, relaxed, budget) if plan.fits(budget)]
        if fitting:
            best = min(fitting, key=lambda plan: _order(plan, settings.plan))
            values = [f"memory.{name} to {format_value(getattr(best, name))}" for name in change]
            remedy = f"Set {', '.join(values)}: {plan_in_words(best)}."
            return RunError(found, "a plan that fits", remedy)
    least = _smallest(sizes, settings.model_copy(update=_FREE), budget)
    more = "" if least is None else f" (at the least {_lacking(least, budget)})"
    return RunError(
        found,
        f"more memory{more}",
        "Lower dataset.resolution, training.batch_size or adapter.rank, close other programs that "
        "use this memory, or save the run file and train on a larger machine.",
    )


def _smallest(sizes: StepSizes, settings: MemorySection, budget: Budget) -> MemoryPlan | None:
    plans = possible_plans(sizes, settings, budget)

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


def plan_in_words(plan: MemoryPlan) -> str:
    """A plan in a few words."""
    swap = f"{plan.blocks_to_swap} blocks swapped" if plan.blocks_to_swap else "nothing swapped"
    where = "" if plan.master == "none" else f" ({plan.master})"
    kept = plan.blocks_to_checkpoint
    again = "" if kept == plan.blocks else f", {kept} of {plan.blocks} checkpointed"
    inputs = ", inputs in RAM" if plan.checkpoint_inputs == "ram" else ""
    return f"{plan.base_format}, {swap}{where}{again}{inputs}, {gibibytes(plan.device)}"


def _choice(memory: MemorySection, plans: list[MemoryPlan], budget: Budget) -> PlanChoice:
    best = plans[0]
    chosen = {
        "base_format": best.base_format,
        "blocks_to_swap": best.blocks_to_swap,
        "blocks_to_checkpoint": best.blocks_to_checkpoint,
        "checkpoint_inputs": best.checkpoint_inputs,
        # Of RAM as much is pinned as can be, whatever was expected: nothing is lost by it.
        "master": "file" if best.master == "file" else memory.master,
    }
    return PlanChoice(memory.model_copy(update=chosen), tuple(alternatives(plans)), budget)
