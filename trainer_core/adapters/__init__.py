"""LoRA, LoHa, LoKr and OFT on any module: equation, initialization, forward, state, attaching.

`attach` needs PEFT, whose import takes seconds; it is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import AdapterConfig
    from .attachment import AttachedAdapter, attach

__all__ = ["AdapterConfig", "AttachedAdapter", "attach"]

_HOMES = {"AdapterConfig": "..config", "AttachedAdapter": ".attachment", "attach": ".attachment"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
