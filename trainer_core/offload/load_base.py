"""Loads a frozen denoiser, and swaps the blocks of it that ``memory.blocks_to_swap`` asks for."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from ..config import MemorySection
from ..errors import BaseModelError, RunError
from ..families.family import Family
from ..tensors.device_tables import forget_tables
from ..weights.base_location import BaseLocation
from .block_selection import evenly_spread, repeated_blocks, swapped_blocks
from .empty_base import EmptyBase, bytes_on_device, empty_base
from .host_weights import HostBlock, Master, Span, block_size, block_spans, make_master
from .machine import Machine
from .streamed_blocks import StreamedBlocks
from .transfer import make_transfer

HOST_KEEPS = "its host keeps the base's weights"
"""Why the blocks of a base that its host has given cannot be swapped."""


@dataclass(slots=True)
class PlacedBase:
    """A frozen denoiser, of which blocks may be swapped.

    Attributes:
        every: The weights of each of its blocks, in the order of their calls; empty where they
            cannot be swapped.
        streamed: Its swapped blocks; None where none was ever swapped.
        refusal: Why blocks cannot be swapped from now on, in words; None where they can.
        before_swap: Told the numbers of the blocks that will be swapped from now on, each of which
            has to be checkpointed.
        checkpoint_all: Checkpoints every block, and says how many were not.
        uncheckpointed: How many blocks keep their activations and could be checkpointed.
        needs_choice, keep: As of `CheckpointedBlocks`.
    """

    transformer: nn.Module
    device: torch.device
    memory: MemorySection
    machine: Machine
    every: dict[nn.Module, tuple[Span, ...]] = field(default_factory=dict)
    streamed: StreamedBlocks | None = None
    refusal: str | None = None
    before_swap: Callable[[Sequence[int]], object] = lambda numbers: None
    checkpoint_all: Callable[[], int] = lambda: 0
    uncheckpointed: Callable[[], int] = lambda: 0
    needs_choice: Callable[[], bool] = lambda: False
    keep: Callable[[int], int] = lambda room: 0

    @property
    def count(self) -> int:
        """How many blocks are swapped."""
        return 0 if self.streamed is None else self.streamed.count

    @property
    def most(self) -> int:
        """How many blocks can be swapped."""
        return 0 if self.refusal else len(self.every)

    def send_rest(self) -> None:
        """Send to the device what is not swapped, such as what an adapter added to the blocks."""
        if self.streamed is not None:
            self.streamed.place_rest(self.transformer, self.device)

    def device_bytes(self, count: int) -> int:
        """Bytes of the blocks' frozen weights on the device, if so many blocks are swapped."""
        sizes, slots = [block_size(each) for each in self.every.values()], self.memory.swap_slots
        away = set(evenly_spread(count, len(sizes)))
        resident = sum(size for number, size in enumerate(sizes) if number not in away)
        return resident + sum(min(slots, same) * size for size, same in self._alike(away))

    def sent_bytes(self, count: int) -> int:
        """Bytes that a forward and a backward pass send, if so many blocks are swapped."""
        slots = self.memory.swap_slots
        away = set(evenly_spread(count, len(self.every)))
        return sum(2 * max(0, same - slots) * size for size, same in self._alike(away))

    def _alike(self, numbers: Collection[int]) -> list[tuple[int, int]]:
        """Of blocks of one layout each: the bytes of one, and how many they are."""
        spans = list(self.every.values())
        layouts = Counter(tuple(span.layout for span in spans[number]) for number in numbers)
        sizes = {tuple(span.layout for span in each): block_size(each) for each in spans}
        return [(sizes[each], same) for each, same in layouts.items()]

    def swap(self, count: int) -> None:
        """Swap more or fewer blocks than now; only between two steps.

        No number changes: a run learns what it would have learned. Where the system refuses
        something halfway, every block is on one side or the other, and may be swapped again.

        Args:
            count: How many; they are spread evenly again.

        Raises:
            RunError: When blocks cannot be swapped, or RAM is too small; nothing is changed then.
        """
        if count == self.count:
            return
        blocks = list(self.every)
        if self.refusal or count > len(blocks):
            raise RunError(
                f"{count} blocks are to be swapped, and {self.refusal or f'{len(blocks)} can be'}",
                "a base whose blocks are checkpointed one by one and can be swapped",
                "Set memory.gradient_checkpointing to true and memory.blocks_to_swap to what fits "
                "before the run starts.",
            )
        if self.streamed is None:
            # Of a base that was loaded onto the device nothing is left of its file.
            name = self.memory.master if self.memory.master != "file" else "auto"
            self.stream([], make_master(name, self.device, self.machine))
        assert self.streamed is not None
        if not self.streamed.lasting:
            size = sum(map(block_size, self.every.values())) // len(blocks)
            _require_ram((count - self.count) * size, count, self.machine)
        numbers = evenly_spread(count, len(blocks))
        self.before_swap(numbers)
        self.streamed.change([blocks[each] for each in numbers])

    def stream(
        self,
        blocks: Sequence[nn.Module],
        master: Master,
        held: Mapping[nn.Module, HostBlock] | None = None,
    ) -> None:
        """Take blocks off the device for the first time; an empty list moves nothing yet."""
        self.machine.drop_base()
        self.streamed = StreamedBlocks(
            blocks,
            self.device,
            self.memory.swap_slots,
            master=master,
            transfer=make_transfer(self.device),
            every=self.every,
            held=held,
        )

    def mark(self, marked: bool) -> None:
        """Say of the blocks' weights that nobody changes them, or no more."""
        for spans in self.every.values():
            for span in spans:
                span.mark(marked)

    def close(self) -> None:
        """Take hooks off, and give memory of the host back; again does nothing."""
        if self.streamed is not None:
            self.streamed.close()
        self.mark(False)
        self.every.clear()


def load_base(
    memory: MemorySection,
    family: Family,
    location: BaseLocation,
    dtype: torch.dtype,
    device: torch.device,
    machine: Machine,
    at_end: contextlib.ExitStack,
    master: Master | None = None,
) -> PlacedBase:
    """Load a frozen denoiser; of what is swapped, nothing is on the device as yet.

    Args:
        machine: Says how much memory may be pinned, and is told of it.
        at_end: Gives the blocks their weights back, and the device its memory.
        master: Where swapped blocks lie; unset: as ``memory`` says.

    Raises:
        ConfigError: When there are fewer blocks; nothing is loaded then.
        BaseModelError: When the base's files are damaged, its blocks cannot be swapped, or are to
            be left in a file that has them in another number format.
        RunError: When the system does not pin memory that has to be pinned, or there is less RAM
            than the swapped blocks take; nothing is loaded then.
    """
    at_end.callback(forget_tables)
    if family.lent is not None:
        transformer = family.lent.open(dtype, device, at_end)
        return PlacedBase(transformer, device, memory, machine, refusal=HOST_KEEPS)
    refusal = None if memory.gradient_checkpointing else "memory.gradient_checkpointing is false"
    if not memory.blocks_to_swap:
        load = partial(family.load_transformer, location, dtype, device, memory.base_format)
        kept = memory.base_format, memory.compute, memory.gradient_checkpointing
        key = (family.name, location.denoiser, location.file, dtype, str(device), kept)
        transformer = machine.base(key, load, at_end)
        placed = PlacedBase(transformer, device, memory, machine, refusal=refusal)
        at_end.callback(placed.close)
        try:
            placed.every |= _every(transformer, family)
        except BaseModelError as error:
            placed.refusal = error.found
        placed.mark(True)
        return placed
    machine.drop_base()
    empty = empty_base(location, family)
    away = swapped_blocks(empty.transformer, family.layers.repeated_blocks, memory)
    if master is None and memory.master != "file":
        _require_ram(_swapped_bytes(memory, empty, dtype), memory.blocks_to_swap, machine)
    master = master or make_master(memory.master, device, machine)
    at_end.callback(master.close)
    # On the way to another device nothing has to be copied within RAM.
    mapped = memory.master == "file" or device.type != "cpu"
    packed_on = device if device.type == "cuda" and not master.lasting else None
    load = partial(family.load_transformer, location, dtype, "cpu", memory.base_format, mapped)
    names = {name for name, each in empty.transformer.named_modules() if each in away}
    transformer, held = _loaded(partial(load, packed_on=packed_on), master, names)
    every = _every(transformer, family) | {block: each.spans for block, each in held.items()}
    placed = PlacedBase(transformer, device, memory, machine=machine, every=every, refusal=refusal)
    at_end.callback(placed.close)
    placed.stream(swapped_blocks(transformer, family.layers.repeated_blocks, memory), master, held)
    placed.send_rest()
    return placed


def _loaded(
    load: Callable[..., nn.Module], master: Master, names: Collection[str]
) -> tuple[nn.Module, dict[nn.Module, HostBlock]]:
    """Load a base; each swapped block is copied as soon as it is packed to where it stays."""
    held: dict[nn.Module, HostBlock] = {}

    def take(name: str, block: nn.Module) -> None:
        if name in names and not master.lasting:
            held[block] = master.hold(block_spans(block))
            held[block].bind()

    transformer = load(take=take)
    for block in [block for block, each in held.items() if not each.is_bound]:
        master.drop(held.pop(block))  # the family has changed it behind the loading
    return transformer, held


def _every(transformer: nn.Module, family: Family) -> dict[nn.Module, tuple[Span, ...]]:
    return {
        block: block_spans(block)
        for block in repeated_blocks(transformer, family.layers.repeated_blocks)
    }


def _swapped_bytes(memory: MemorySection, base: EmptyBase, dtype: torch.dtype) -> int:
    none, all_away = ({"blocks_to_swap": 0}, {"swap_slots": 0})
    whole, rest = (
        bytes_on_device(memory.model_copy(update=each), base, dtype) for each in (none, all_away)
    )
    return whole - rest


def _require_ram(needed: int, count: int, machine: Machine) -> None:
    free = machine.free_ram()
    if needed > free:
        raise RunError(
            f"{count} swapped blocks take {needed / 2**30:.1f} GiB more of RAM, and "
            f"{free / 2**30:.1f} GiB are free",
            "room in RAM for the weights of swapped blocks",
            "Set memory.master to file, which leaves them in the base's file, or "
            "memory.base_format to one of fewer bits, or end other programs.",
        )
