"""`BlockRing`: the memory on the device that blocks of one layout take turns in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Slot:
    """Room for one block, which is taken when the first block needs it.

    Where the device is full then, a step ends as any other does that does not fit, and can be made
    again with more blocks swapped.

    Attributes:
        block: The number of the block whose weights are there or on their way; None: of none.
        ticket: Of the transfer, while nobody has waited for it.
        arriving: Whether nobody has waited for it yet.
        used: When a block was last asked for, or sent, here.
    """

    __slots__ = ("_bytes", "_device", "_size", "arriving", "block", "ticket", "used")

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device
        self._bytes: Tensor | None = None
        self.block: int | None = None
        self.ticket: Any = None
        self.arriving = False
        self.used = -1

    @property
    def bytes(self) -> Tensor:
        """`[size]`, uint8, on the device."""
        if self._bytes is None:
            # Made in inference mode, as by a preview, it could not be trained with.
            with torch.inference_mode(False):
                self._bytes = torch.empty(self._size, dtype=torch.uint8, device=self._device)
        return self._bytes


class BlockRing:
    """Slots of one size.

    Args:
        count: How many.
        size: Bytes of each.
        device: Where.
    """

    def __init__(self, count: int, size: int, device: torch.device) -> None:
        self.slots = tuple(Slot(size, device) for _ in range(count))

    def holding(self, block: int) -> Slot | None:
        """The slot that a block is in, or on its way to."""
        for slot in self.slots:
            if slot.block == block:
                return slot
        return None

    def oldest(self, spared: Slot | None) -> Slot | None:
        """The slot that was used least recently; None where only the spared one is."""
        found = None
        for slot in self.slots:
            if slot is not spared and (found is None or slot.used < found.used):
                found = slot
        return found
