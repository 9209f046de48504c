"""`Machine`: what the computer has free, and how fast it is.

A program that shares the computer with the trainer hands it a machine of its own: ComfyUI knows
what it needs itself, and counts the memory that is pinned.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable

import psutil
import torch
from torch import nn

from ..device import (
    attention_speed,
    converting_speed,
    copy_speed,
    free_memory,
    moving_speed,
    product_speed,
    release_memory,
)
from .possible_plans import RESERVE, Budget

PINNED_SHARE = 0.35 if sys.platform == "win32" else 0.6
"""Of the RAM: what pinned memory may take. Windows refuses more than half."""

PRODUCTS, ATTENTION, MOVED = 0.95, 0.94, 0.73
"""What a step's kernels reach of a large product's speed, of attention's forward pass, and of a
plain copy: in the step that an H200 traced (`benchmarks.campaign.record`)."""

_ROOM = 8
"""One part in so many of a device's free memory is what its speed is measured in."""

LAUNCH_SECONDS = 48e-6
"""What that machine's host took for a kernel of the same step, with Python and autograd."""


class Machine:
    """A computer that the trainer has for itself.

    Attributes:
        reserve: Bytes of a device that plans leave to libraries and the allocator.
    """

    reserve = RESERVE
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

    def base(
        self, key: Hashable, load: Callable[[], nn.Module], at_end: contextlib.ExitStack
    ) -> nn.Module:
        """A frozen denoiser that lies whole on its device.

        Args:
            key: What it is and how it is kept.
            at_end: Takes it back.
        """
        del key, at_end
        return load()

    def drop_base(self) -> None:
        """Hear that a base goes in parts, or that the memory of one is needed."""


class KeepingMachine(Machine):
    """A machine that keeps a base in memory between runs, as long as they want the same one."""

    _key: Hashable = None
    _kept: nn.Module | None = None
    _lent = False

    def free_memory(self, device: torch.device) -> int:
        """Free bytes of a device, with those of a base that waits for the next run."""
        free = super().free_memory(device)
        if self._kept is None or self._lent:
            return free
        return free + sum(
            each.nbytes
            for each in (*self._kept.parameters(), *self._kept.buffers())
            if each.device == device
        )

    def base(
        self, key: Hashable, load: Callable[[], nn.Module], at_end: contextlib.ExitStack
    ) -> nn.Module:
        """The one that is kept, where it is the same; else it is loaded and kept."""
        if self._kept is None or key != self._key:
            self.drop_base()
            self._kept, self._key = load(), key
        self._lent = True
        at_end.callback(self._take_back)
        return self._kept

    def drop_base(self) -> None:
        """Keep none from now on; a run that has it goes on with it."""
        if self._kept is not None:
            device = next(self._kept.parameters()).device
            self._kept, self._key = None, None
            release_memory(device)

    def _take_back(self) -> None:
        self._lent = False


def machine_budget(machine: Machine, device: torch.device, dtype: torch.dtype) -> Budget:
    """Ask the machine; it takes a tenth of a second."""
    ram, free = machine.free_ram(), machine.free_memory(device)
    room = free // _ROOM
    return Budget(
        device_free=free,
        ram_free=ram,
        pinned_limit=min(machine.pinned_limit(), ram),
        link_bytes_per_s=copy_speed(device, room),
        flops_per_s=product_speed(device, dtype, room) * PRODUCTS,
        reserve=0 if device.type == "cpu" else machine.reserve,
        pins=device.type == "cuda",
        attention_per_s=attention_speed(device, dtype, room) * ATTENTION,
        moved_per_s=moving_speed(device, room) * MOVED,
        launch_seconds=LAUNCH_SECONDS,
        converted_per_s=converting_speed(device, dtype, room),
    )
