"""`Machine`: what the computer has free, and how fast it is.

A program that shares the computer with the trainer hands it a machine of its own: ComfyUI knows
what it needs itself, and counts the memory that is pinned.
"""

from __future__ import annotations

import sys

import psutil
import torch

from ..device import copy_speed, free_memory, product_speed
from .memory_plan import RESERVE, Budget

PINNED_SHARE = 0.35 if sys.platform == "win32" else 0.6
"""Of the RAM: what pinned memory may take. Windows refuses more than half."""

_REACHED = 0.7
"""What a whole step is taken to reach of the speed of a large product."""


class Machine:
    """A computer that the trainer has for itself."""

    _pinned = 0

    def plans_for(self, device: torch.device) -> bool:
        """Whether there is a choice of where weights are kept: a CPU has them where it computes."""
        return device.type != "cpu"

    def free_memory(self, device: torch.device) -> int:
        """Free bytes of a device that a run may take."""
        return free_memory(device)

    def free_ram(self) -> int:
        """Free bytes of RAM."""
        return psutil.virtual_memory().available

    def pinned_limit(self) -> int:
        """Bytes of RAM that may be pinned beside those that are."""
        return max(0, int(psutil.virtual_memory().total * PINNED_SHARE) - self._pinned)

    def count_pinned(self, change: int) -> None:
        """Hear that so many bytes were pinned, or given back if it is negative."""
        self._pinned += change

    def missing_memory(self, device: torch.device) -> int:
        """Bytes of a device that others need now; a run is asked for them between its steps."""
        del device
        return 0


def machine_budget(machine: Machine, device: torch.device, dtype: torch.dtype) -> Budget:
    """Ask the machine; it takes a tenth of a second.

    Args:
        device: Where a run would compute.
    """
    ram = machine.free_ram()
    return Budget(
        device_free=machine.free_memory(device),
        ram_free=ram,
        pinned_limit=min(machine.pinned_limit(), ram),
        link_bytes_per_s=copy_speed(device),
        flops_per_s=product_speed(device, dtype) * _REACHED,
        reserve=0 if device.type == "cpu" else RESERVE,
        pins=device.type == "cuda",
    )
