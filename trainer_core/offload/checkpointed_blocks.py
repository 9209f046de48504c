"""Which blocks compute their activations again, and where their inputs wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..config import MemorySection
from ..families.family import Family
from .host_inputs import WORTH, HostArena, HostInputs
from .machine import Machine
from .pinned_memory import PinnedMemory
from .swapped import chosen_blocks, repeated_blocks
from .transfer import make_transfer


class CheckpointedBlocks:
    """Calls each block of a denoiser as it is to be called while it trains.

    A block is always called as a module, in the backward pass too: its hooks bring its weights.

    Args:
        blocks: Each block that a choice is made for, by its number.
        chosen: Numbers of those that compute their activations again; blocks without a number do.
        inputs: Keeps the inputs of these in RAM; None where they stay on the device.
    """

    def __init__(
        self, blocks: Mapping[int, nn.Module], chosen: set[int], inputs: HostInputs | None = None
    ) -> None:
        # Not the blocks themselves: they belong to what this belongs to.
        self._numbers = {id(block): number for number, block in blocks.items()}
        self.chosen, self._inputs = chosen, inputs

    def checkpoint_all(self) -> int:
        """Let every block compute its activations again; how many did not."""
        more = self.uncheckpointed()
        self.chosen.update(self._numbers.values())
        return more

    def uncheckpointed(self) -> int:
        """How many blocks keep their activations."""
        return len(set(self._numbers.values()) - self.chosen)

    def __call__(self, block: nn.Module, *args: Any) -> Any:
        """Call a block."""
        number = self._numbers.get(id(block))
        if number is not None and number not in self.chosen:
            return block(*args)
        if number is None or self._inputs is None:
            return checkpoint(block, *args, use_reentrant=False)
        return self._inputs.call(block, number, args)


def checkpoint_blocks(
    transformer: nn.Module,
    family: Family,
    memory: MemorySection,
    device: torch.device,
    machine: Machine,
    at_end: contextlib.ExitStack,
) -> CheckpointedBlocks | None:
    """Let a denoiser's blocks compute again what ``memory`` asks for.

    Args:
        device: Where it computes.

    Returns:
        What calls the blocks; None without gradient checkpointing.

    Raises:
        ConfigError: When there are fewer blocks than are to be checkpointed.
    """
    blocks = repeated_blocks(transformer, family.layers.repeated_blocks)
    chosen = set(chosen_blocks(memory, len(blocks)))
    if not memory.gradient_checkpointing:
        return None
    inputs = None
    if memory.checkpoint_inputs == "ram":
        pinned = PinnedMemory(machine, device) if device.type == "cuda" else None
        inputs = HostInputs(HostArena(pinned), make_transfer(device), WORTH)
        at_end.callback(inputs.close)
    calls = CheckpointedBlocks(dict(enumerate(blocks)), chosen, inputs)
    family.layers.enable_checkpointing(transformer, calls)
    return calls
