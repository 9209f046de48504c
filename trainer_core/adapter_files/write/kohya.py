"""Layout ``kohya``: ComfyUI's names, with ``_`` for each dot."""

from __future__ import annotations

from dataclasses import replace

from ...types import AdapterState
from ..names.key_map import KeyMap
from .comfyui import plan_native
from .write_plan import Options, WritePlan

KOHYA_PREFIX = "lora_unet_"


def plan_kohya(state: AdapterState, key_map: KeyMap, options: Options) -> WritePlan:
    """Names of kohya's scripts, and musubi's by default: ComfyUI's, with ``_`` for each dot.

    There is no name for a slice, so the parts of a fused layer are written as that one layer.

    Raises:
        AdapterError: As `plan_comfyui`, and for what cannot be fused.
    """
    return plan_native(
        state,
        key_map,
        replace(options, fused=True),
        lambda native: KOHYA_PREFIX + native.replace(".", "_"),
    )
