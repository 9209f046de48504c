"""Gradient checkpointing: which blocks compute activations again, and where their inputs wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from ..config import MemorySection
from ..device import begin_peak, counts_allocated
from ..families.family import Family
from .block_selection import checkpointed_block_numbers, repeated_blocks
from .host_inputs import WORTH, HostArena, HostInputs
from .machine import Machine
from .pinned_memory import PinnedMemory
from .transfer import make_transfer


class CheckpointedBlocks:
    """Calls each block of a denoiser as it is to be called while it trains.

    A block is always called as a module, in the backward pass too: its hooks bring its weights.

    Args:
        blocks: Each block that a choice is made for, by its number.
        chosen: Numbers of those that compute their activations again; blocks without a number do.
        inputs: Keeps the inputs of these in RAM; None where they stay on the device.
        allocated: Gives the bytes that are taken on the device. With it is measured what a block
            would keep, so that `keep` can choose; None where `chosen` is not to change.
        begin: Called before inputs that are larger than any before.
    """

    def __init__(
        self,
        blocks: Mapping[int, nn.Module],
        chosen: set[int],
        inputs: HostInputs | None = None,
        allocated: Callable[[], int] | None = None,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        # Not the blocks themselves: they belong to what this belongs to.
        self._numbers = {id(block): number for number, block in blocks.items()}
        self.chosen, self._inputs = chosen, inputs
        self._allocated, self._begin = allocated, begin
        # By number: most bytes that it would keep, and how large its inputs are then.
        self._bytes: dict[int, int] = {}
        self._largest: dict[int, int] = {}
        self._chosen_for: dict[int, int] = {}

    def needs_choice(self) -> bool:
        """Whether blocks were called with larger inputs than when `keep` chose."""
        return self._allocated is not None and self._largest != self._chosen_for

    def keep(self, free: int) -> int:
        """Let blocks keep their activations, those of the fewest bytes first.

        One that is called with larger inputs later computes again, until this is called again.

        Args:
            free: Bytes of the device that were free at the peak of the last step, and may be taken.

        Returns:
            How many blocks keep theirs.
        """
        larger = {n for n, size in self._largest.items() if size != self._chosen_for.get(n)}
        self._chosen_for = dict(self._largest)
        self.chosen |= larger
        for number in sorted(self.chosen & self._bytes.keys(), key=self._bytes.__getitem__):
            free -= self._bytes[number]
            if free < 0:
                break
            self.chosen.discard(number)
        return self.uncheckpointed()

    def checkpoint_all(self) -> int:
        """Let every block compute its activations again, from now on; how many did not."""
        more = self.uncheckpointed()
        self._allocated = None
        self.chosen.update(self._numbers.values())
        return more

    def uncheckpointed(self) -> int:
        """How many blocks keep their activations."""
        return len(set(self._numbers.values()) - self.chosen)

    def __call__(self, block: nn.Module, *args: Any) -> Any:
        """Call a block."""
        number = self._numbers.get(id(block))
        if self._allocated is not None and number is not None and self._is_larger(number, args):
            return checkpoint(partial(self._measured, block, number), *args, use_reentrant=False)
        if number is not None and number not in self.chosen:
            return block(*args)
        if number is None or self._inputs is None or not _is_differentiated(block, args):
            return checkpoint(block, *args, use_reentrant=False)
        return self._inputs.call(block, number, args)

    def _is_larger(self, number: int, args: tuple[Any, ...]) -> bool:
        """Whether it is not known what a block would keep of such inputs."""
        size = sum(each.numel() for each in args if isinstance(each, Tensor))
        if size > self._largest.get(number, 0):
            if not self.needs_choice():
                self._begin()
            self._largest[number] = size
        return size > self._chosen_for.get(number, 0)

    def _measured(self, block: nn.Module, number: int, *args: Any) -> Any:
        """Call a block. When it computes again, all is there that it would have kept."""
        # `checkpoint_all` may have ended the measuring between forward and backward pass.
        allocated = self._allocated or int
        before = allocated()
        try:
            return block(*args)
        finally:  # torch ends it by an error when it has computed enough
            self._bytes[number] = max(allocated() - before, self._bytes.get(number, 0))


def _is_differentiated(block: nn.Module, args: tuple[Any, ...]) -> bool:
    """Whether a call will be computed again; below the lowest adapted block none is."""
    tensors = chain(tree_leaves(args), block.parameters())
    return any(isinstance(each, Tensor) and each.requires_grad for each in tensors)


def checkpoint_blocks(
    transformer: nn.Module,
    family: Family,
    memory: MemorySection,
    device: torch.device,
    machine: Machine,
    at_end: contextlib.ExitStack,
    *,
    may_keep: bool = False,
) -> CheckpointedBlocks | None:
    """Let a denoiser's blocks compute again what ``memory`` asks for.

    Args:
        may_keep: Whether `CheckpointedBlocks.keep` will choose where no plan has.

    Returns:
        What calls the blocks; None without gradient checkpointing.

    Raises:
        ConfigError: When there are fewer blocks than are to be checkpointed.
    """
    blocks = repeated_blocks(transformer, family.layers.repeated_blocks)
    chosen = set(checkpointed_block_numbers(memory, len(blocks)))
    if not memory.gradient_checkpointing:
        return None
    inputs = None
    if memory.checkpoint_inputs == "ram":
        pinned = PinnedMemory(machine, device) if device.type == "cuda" else None
        inputs = HostInputs(HostArena(pinned), make_transfer(device), WORTH)
        at_end.callback(inputs.close)
    unsaid = memory.plan != "off" and memory.blocks_to_checkpoint is None
    all_here = inputs is None and not memory.blocks_to_swap
    allocated = counts_allocated(device) if may_keep and unsaid and all_here else None
    begin = partial(begin_peak, device)
    calls = CheckpointedBlocks(
        dict(enumerate(blocks)), chosen, inputs, allocated=allocated, begin=begin
    )
    family.layers.enable_checkpointing(transformer, calls)
    return calls
