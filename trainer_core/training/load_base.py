"""Loads a run's denoiser, with the blocks swapped that the run file names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ..config import MemorySection
from ..families.family import Family
from ..offload.host_weights import make_master
from ..offload.streamed_blocks import StreamedBlocks
from ..offload.swapped import swapped_blocks
from ..offload.transfer import make_transfer
from ..weights.base_location import BaseLocation
from .memory_estimate import empty_base


def load_base(
    memory: MemorySection,
    family: Family,
    location: BaseLocation,
    dtype: torch.dtype,
    device: torch.device,
    at_end: contextlib.ExitStack,
) -> tuple[nn.Module, Callable[[], object]]:
    """Load the frozen denoiser; of what is swapped, nothing is on the device as yet.

    Args:
        memory: Which blocks are swapped, and how.
        family: The base's family.
        location: The base.
        dtype: Of its weights.
        device: Where it computes.
        at_end: Gives the blocks their weights back, and the device its memory.

    Returns:
        The denoiser, and what sends to the device all that an adapter adds to it.

    Raises:
        ConfigError: When there are fewer blocks; nothing is loaded then.
        BaseModelError: When the base's files are damaged, its blocks cannot be swapped, or are to
            be left in a file that has them in another number format.
        RunError: When the system does not pin memory that has to be pinned.
    """
    kept = memory.base_format
    if not memory.blocks_to_swap:
        return family.load_transformer(location, dtype, device, kept), lambda: None
    swapped_blocks(empty_base(location, family).transformer, family.repeated_blocks, memory)
    master = make_master(memory.master, device)
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
    send_rest = partial(streamed.place_rest, transformer, device)
    send_rest()
    return transformer, send_rest
