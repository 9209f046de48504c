"""`machine_budget`: what this machine has free, and how fast it is, for the planner."""

from __future__ import annotations

import torch

from ..device import copy_speed, free_memory, product_speed
from .host_weights import PINNED_SHARE
from .memory_plan import RESERVE, Budget

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
        pinned_limit=int(min(memory.total * PINNED_SHARE, memory.available)),
        link_bytes_per_s=copy_speed(device),
        flops_per_s=product_speed(device, dtype) * _REACHED,
        reserve=0 if device.type == "cpu" else RESERVE,
    )
