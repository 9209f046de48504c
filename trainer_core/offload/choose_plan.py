"""Chooses how a base is kept: from its files, and what is free, to memory settings without a gap.

No weight is read, and nothing is known here of a run: the caller says what else a step takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from ..config import MemorySection
from ..errors import RunError
from ..quantization.formats import FORMATS
from ..quantization.stored_format import StoredFormat
from ..weights.kept_weights import kept_weights
from ..weights.layer_packing import Packing
from .block_selection import swapped_blocks
from .empty_base import EmptyBase
from .model_bytes import BaseBytes, base_bytes
from .possible_plans import (
    Budget,
    FormatSizes,
    MemoryPlan,
    PlanSettings,
    StepSizes,
    alternatives,
    rank_plans,
)
from .step_profile import StepProfile

_PLENTY = 0.1
"""Share of the free memory below which a base's weights leave nothing to choose."""

_WORTH = 0.9
"""A format is a choice where it takes less than this share of the more exact one before it."""


@dataclass(frozen=True, slots=True)
class KeptFormat:
    """A base in one format, as its files give it.

    Attributes:
        base: Bytes of its weights.
        stored: What most of its packed weights are kept in; None where all are dense.
        in_file, copied, copied_resident: As in `FormatSizes`.
    """

    base: BaseBytes
    stored: StoredFormat | None
    in_file: bool
    copied: int
    copied_resident: int

    def sizes(self, activations: StepProfile) -> FormatSizes:
        """With what a step takes beside the weights."""
        return FormatSizes(self.base, activations, self.in_file, self.copied, self.copied_resident)


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """How a base is kept.

    Attributes:
        memory: The memory settings, of which none is left open.
        plans: The plan that is taken, and the best of other kinds; none where nothing was planned.
        budget: What it was planned for.
    """

    memory: MemorySection
    plans: tuple[MemoryPlan, ...] = ()
    budget: Budget | None = None


SizesOf = Callable[[Mapping[str, KeptFormat]], StepSizes]
"""Gives what a step needs in some formats, in the same order."""


def unplanned(memory: MemorySection, held: str | None = None) -> PlanChoice:
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
        sizes_of: What a step needs; see `weights_and` where only the weights are known.
        swappable: Whether blocks may be swapped where the settings do not ask for it.
        held: The format that is kept to as long as it fits, if the settings name none.

    Raises:
        RunError: When nothing fits; it names what would.
        ConfigError: When more blocks are to be swapped than there are.
        BaseModelError: When the base's files are damaged, or cannot be kept as the settings say.
    """
    swapped_blocks(base.transformer, base.family.layers.repeated_blocks, memory)
    count = memory.blocks_to_swap
    settings = PlanSettings(
        plan="auto" if memory.plan == "off" else memory.plan,
        base_format=memory.base_format,
        blocks_to_swap=0 if count is None and not swappable else count,
        swap_slots=memory.swap_slots,
        master=memory.master,
        gradient_checkpointing=memory.gradient_checkpointing,
        blocks_to_checkpoint=memory.blocks_to_checkpoint,
        checkpoint_inputs=memory.checkpoint_inputs,
    )
    formats: dict[str, KeptFormat] = {}
    wanted = held if memory.base_format == "auto" else memory.base_format
    if wanted is not None:
        formats[wanted] = kept_format(base, wanted, dtype)
        found = _ranked(sizes_of(formats), replace(settings, base_format=wanted), budget)
        if found:
            return _choice(memory, found, budget)
    # Others are taken, or named by the error as what would fit.
    formats = {**(formats if settings.base_format != "auto" else {}), **auto_formats(base, dtype)}
    first = next(iter(formats.values()))
    if settings.plan != "smallest" and first.base.total < budget.device_free * _PLENTY:
        formats = dict([next(iter(formats.items()))])
        settings = replace(settings, blocks_to_swap=settings.blocks_to_swap or 0)
    return _choice(memory, rank_plans(sizes_of(formats), settings, budget), budget)


def weights_and(rest: int, flops: int, micro_batches: int = 1) -> SizesOf:
    """What a step needs where everything but the weights is only guessed.

    Args:
        rest: Bytes beside the weights.
    """

    def sizes_of(formats: Mapping[str, KeptFormat]) -> StepSizes:
        step = StepProfile((), rest, 0, flops, micro_batches)
        return StepSizes({name: each.sizes(step) for name, each in formats.items()}, 0)

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


def _ranked(sizes: StepSizes, settings: PlanSettings, budget: Budget) -> list[MemoryPlan]:
    try:
        return rank_plans(sizes, settings, budget)
    except RunError:
        return []


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
