"""Adapter Trainer's headless core: a library and a command line.

Importing this package loads neither torch nor diffusers; names are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .adapters import AttachedAdapter, attach
    from .config import AdapterConfig, RunConfig
    from .errors import TrainerError
    from .families.registry import get_family
    from .families.run_files import load_config
    from .training import train

_HOMES = {
    "AdapterConfig": ".config",
    "AttachedAdapter": ".adapters",
    "RunConfig": ".config",
    "TrainerError": ".errors",
    "attach": ".adapters",
    "get_family": ".families.registry",
    "load_config": ".families.run_files",
    "train": ".training",
}

__all__ = [
    "AdapterConfig",
    "AttachedAdapter",
    "RunConfig",
    "TrainerError",
    "attach",
    "get_family",
    "load_config",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
