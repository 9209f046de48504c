"""Inputs that say how an adapter file is written, of every node that writes one."""

from __future__ import annotations

from typing import get_args

from comfy_api.latest import io

from ...trainer_core.config.run import LayoutName, find_setting
from ...trainer_core.config.section import choices_of

LAYOUTS = list(get_args(LayoutName))
LAYOUT_HELP = (
    "comfyui: for ComfyUI's own loaders. diffusers: for Diffusers. peft: a folder for PEFT. kohya: "
    "names of kohya's scripts and of musubi. lycoris: LyCORIS's names. ComfyUI loads the last two "
    "as well."
)


def form_inputs() -> list[io.Input]:
    """Inputs that came later; in saved workflows they stand behind all others."""
    dtype = find_setting("output.dtype")
    return [
        io.Boolean.Input(
            "fused",
            default=False,
            optional=True,
            advanced=True,
            tooltip="Layout comfyui: write q, k and v as ComfyUI's one layer, for its bypass "
            "loaders, which drop slices. Layout kohya always does.",
        ),
        io.Combo.Input(
            "dtype",
            options=["keep", *choices_of(dtype)] if dtype else ["keep"],
            default="keep",
            optional=True,
            advanced=True,
            tooltip="Number format of the file. keep: that of the adapter.",
        ),
    ]
