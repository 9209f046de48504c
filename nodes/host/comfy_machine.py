"""`ComfyMachine`: what of the computer ComfyUI leaves to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...trainer_core.offload.machine import Machine
from . import comfy_host

if TYPE_CHECKING:
    import torch

PREVIEWS = 300 << 20
"""Bytes of a device for ComfyUI's VAE, which decodes previews while a run trains."""


class ComfyMachine(Machine):
    """A computer whose memory ComfyUI counts."""

    def free_memory(self, device: torch.device) -> int:
        """Free bytes of a device, less what ComfyUI leaves to others and needs for previews."""
        free = comfy_host.free_memory(device) - comfy_host.reserved_memory() - PREVIEWS
        return max(0, free)

    def pinned_limit(self) -> int:
        """Bytes that may be pinned beside those that ComfyUI has pinned."""
        left = comfy_host.pinned_left()
        return super().pinned_limit() if left is None else left

    def count_pinned(self, change: int) -> None:
        """Tell ComfyUI: it pins less of its own meanwhile."""
        comfy_host.count_pinned(change)

    def missing_memory(self, device: torch.device) -> int:
        """Bytes by which what anybody may still take of a device is below ComfyUI's reserve.

        What torch has at hand for the run's next step does not count: nobody else may take it, and
        there is enough of it after every step.
        """
        return max(0, comfy_host.reserved_memory() - comfy_host.unclaimed_memory(device))
