"""Loads a frozen denoiser, and swaps the blocks of it that ``memory.blocks_to_swap`` asks for."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import nn

from ..config import MemorySection
from ..families.family import Family
from ..weights.base_location import BaseLocation
from .empty_base import empty_base
from .host_weights import make_master
from .machine import Machine
from .streamed_blocks import StreamedBlocks
from .swapped import swapped_blocks
from .transfer import make_transfer


@dataclass(frozen=True, slots=True)
class PlacedBase:
    """A frozen denoiser, of which blocks may be swapped.

    Attributes:
        transformer: The denoiser.
        device: Where it computes.
        streamed: Its swapped blocks; None where there are none.
    """

    transformer: nn.Module
    device: torch.device
    streamed: StreamedBlocks | None = None

    def send_rest(self) -> None:
        """Send to the device what is not swapped, such as what an adapter added to the blocks."""
        if self.streamed is not None:
            self.streamed.place_rest(self.transformer, self.device)


def load_base(
    memory: MemorySection,
    family: Family,
    location: BaseLocation,
    dtype: torch.dtype,
    device: torch.device,
    machine: Machine,
    at_end: contextlib.ExitStack,
) -> PlacedBase:
    """Load a frozen denoiser; of what is swapped, nothing is on the device as yet.

    Args:
        memory: How it is kept, which blocks are swapped, and how.
        family: The base's family.
        location: The base.
        dtype: Of its weights.
        device: Where it computes.
        machine: Says how much memory may be pinned, and is told of it.
        at_end: Gives the blocks their weights back, and the device its memory.

    Raises:
        ConfigError: When there are fewer blocks; nothing is loaded then.
        BaseModelError: When the base's files are damaged, its blocks cannot be swapped, or are to
            be left in a file that has them in another number format.
        RunError: When the system does not pin memory that has to be pinned.
    """
    kept = memory.base_format
    if not memory.blocks_to_swap:
        transformer = family.load_transformer(location, dtype, device, kept)
        return PlacedBase(transformer, device)
    swapped_blocks(empty_base(location, family).transformer, family.repeated_blocks, memory)
    master = make_master(memory.master, device, machine)
    # On the way to another device nothing has to be copied within RAM.
    mapped = memory.master == "file" or device.type != "cpu"
    transformer = family.load_transformer(location, dtype, "cpu", kept, mapped)
    streamed = StreamedBlocks(
        swapped_blocks(transformer, family.repeated_blocks, memory),
        device,
        memory.swap_slots,
        master,
        make_transfer(device),
    )
    at_end.callback(streamed.close)
    placed = PlacedBase(transformer, device, streamed)
    placed.send_rest()
    return placed
