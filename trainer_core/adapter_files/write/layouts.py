"""The layouts in which adapter files are written, by name."""

from __future__ import annotations

from collections.abc import Mapping

from .comfyui import plan_comfyui
from .diffusers import plan_diffusers
from .kohya import plan_kohya
from .lycoris import plan_lycoris
from .peft import plan_peft
from .write_plan import Layout

LAYOUTS: Mapping[str, Layout] = {
    "comfyui": plan_comfyui,
    "diffusers": plan_diffusers,
    "peft": plan_peft,
    "kohya": plan_kohya,
    "lycoris": plan_lycoris,
}


def layout_name(stem: str, layout: str) -> str:
    """What a run's adapter is called in a layout: a file, or a folder for ``peft``.

    Args:
        stem: The run's name.
        layout: The layout.
    """
    own = stem if layout == "comfyui" else f"{stem}_{layout}"
    return own if layout == "peft" else f"{own}.safetensors"
