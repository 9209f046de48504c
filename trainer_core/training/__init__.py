"""The run: loop, optimizer, schedule, checkpoints, memory, observer.

Names are resolved on first use, because `train` loads everything.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .observer import Observer
    from .run import train
    from .step.processes import AccelerateProcesses, Processes, SingleProcess

__all__ = ["AccelerateProcesses", "Observer", "Processes", "SingleProcess", "train"]

_HOMES = {
    "AccelerateProcesses": ".step.processes",
    "Observer": ".observer",
    "Processes": ".step.processes",
    "SingleProcess": ".step.processes",
    "train": ".run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
