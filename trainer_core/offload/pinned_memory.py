"""`PinnedMemory`: memory that the system may not page out, so that copies wait for nothing.

The pages of ordinary buffers are registered with CUDA: torch's own pinned memory is rounded up to a
power of two, and is kept after its last use.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import torch
from torch import Tensor

from ..device import made_current, refused_pins
from .machine import Machine


class PinnedMemory:
    """Pins what it is given, as long as the machine lets it.

    Args:
        device: That reads it; None for the current one.
    """

    def __init__(self, machine: Machine, device: torch.device | None = None) -> None:
        self._machine, self._left = machine, machine.pinned_limit()
        self._device = device
        self._pinned: dict[int, Tensor] = {}

    @property
    def size(self) -> int:
        """Bytes that are pinned now."""
        return sum(flat.numel() for flat in self._pinned.values())

    def pin(self, flat: Tensor) -> bool:
        """Pin memory from `whole_pages`; whether it is pinned now."""
        size = flat.numel()
        if size > self._left or not self._register(flat):
            self._left = 0  # where the system has refused once, it is not asked again
            return False
        self._left -= size
        self._pinned[flat.data_ptr()] = flat
        self._machine.count_pinned(size)
        return True

    def unpin(self, flat: Tensor) -> None:
        """Give memory back that may be pinned."""
        if self._pinned.pop(flat.data_ptr(), None) is not None:
            with made_current(self._device):
                _runtime().cudaHostUnregister(flat.data_ptr())
            self._left += flat.numel()
            self._machine.count_pinned(-flat.numel())

    def close(self) -> None:
        """Give everything back."""
        for flat in list(self._pinned.values()):
            self.unpin(flat)

    def _register(self, flat: Tensor) -> bool:
        size = -(-flat.numel() // mmap.PAGESIZE) * mmap.PAGESIZE
        with made_current(self._device):
            code = int(_runtime().cudaHostRegister(flat.data_ptr(), size, 0))
            if code and torch.cuda.is_available():
                # CUDA tells of a refusal once more, at the next kernel.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device="cuda")
        if code:
            refused_pins.add(f"cudaHostRegister gives {code} for {size} bytes")
        return not code


def whole_pages(size: int) -> Tensor:
    """Memory `[size]` on pages of its own: CUDA does not pin a page twice."""
    room = torch.empty(size + 2 * mmap.PAGESIZE, dtype=torch.uint8)
    skipped = -room.data_ptr() % mmap.PAGESIZE
    # With a storage that begins there: torch asks of its first byte whether a tensor is pinned.
    return torch.from_numpy(room.numpy()[skipped : skipped + size])


def _runtime() -> Any:
    return torch.cuda.cudart()
