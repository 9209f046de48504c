"""`machine_budget`: what this machine has free, and how fast it is, for the planner."""

from __future__ import annotations

import sys

import torch

from ..device import copy_speed, free_memory, product_speed
from .memory_plan import RESERVE, Budget

_PINNED_SHARE = 0.35 if sys.platform == "win32" else 0.6
"""Of the RAM: what may be pinned. Windows refuses more than half."""

_REACHED = 0.7
"""What a whole step is taken to reach of the speed of a large product."""


def machine_budget(device: torch.device, dtype: torch.dtype) -> Budget:
    """Ask the machine; it takes a tenth of a second.

    Args:
        device: Where a run would compute.
        dtype: What in.
    """
    import psutil

    memory = psutil.virtual_memory()
    return Budget(
        device_free=free_memory(device),
        ram_free=memory.available,
        pinned_limit=int(min(memory.total * _PINNED_SHARE, memory.available)),
        link_bytes_per_s=copy_speed(device),
        flops_per_s=product_speed(device, dtype) * _REACHED,
        reserve=0 if device.type == "cpu" else RESERVE,
    )
