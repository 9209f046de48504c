"""Settings of torch's memory allocator, which torch reads from the environment when it is imported.

Torch before 2.9 reads ``PYTORCH_CUDA_ALLOC_CONF`` alone, and 2.9 only there what concerns CUDA
(pytorch#183387); some later ones warn of it where ``PYTORCH_ALLOC_CONF`` is not set.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import MutableMapping

_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_USUAL = "expandable_segments:True"


def set_allocator(environment: MutableMapping[str, str]) -> None:
    """Let memory grow in place in a process that has not imported torch.

    Args:
        environment: Of the process; left alone where it says otherwise, and on other systems.
    """
    chosen = {*_NAMES, "PYTORCH_HIP_ALLOC_CONF"} & {*environment}
    # Drivers for WSL and Jetson may refuse it all memory (pytorch#192330, unsloth#2401).
    refused = any(each in platform.release().lower() for each in ("microsoft", "tegra"))
    if sys.platform == "linux" and not refused and not chosen:
        # Sizes change from step to step, and memory in pieces is no room.
        environment.update(dict.fromkeys(_NAMES, _USUAL))


def allocator_report() -> dict[str, str]:
    """What the environment says to the allocator, each with what it means for a run."""
    return {name: _judged(os.environ[name]) for name in _NAMES if name in os.environ}


def _judged(text: str) -> str:
    parts = (part.partition(":") for part in text.split(","))
    options = {name.strip(): value.strip() for name, _, value in parts}
    if options.get("backend", "native") != "native":
        return f"{text}: CUDA's own allocator, which leaves no gaps; nothing to do."
    if options.get("expandable_segments", "").lower() != "true":
        return f"{text}: memory may be lost in gaps; add {_USUAL}, but not under WSL."
    return f"{text}: memory grows in place; nothing to do."
