"""Adapter Trainer: train LoRA, LoHa and LoKr adapters inside ComfyUI."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comfy_api.latest import ComfyExtension

WEB_DIRECTORY = "./js"


async def comfy_entrypoint() -> ComfyExtension:
    """Give ComfyUI the pack's nodes; it calls this once, after it has loaded the module."""
    from .nodes import AdapterTrainerExtension

    return AdapterTrainerExtension()
