"""Ordinary tensors over the memory of ComfyUI's, which were made under inference mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def ordinary_alias(tensor: Tensor | None) -> Tensor | None:
    """The same numbers in the same memory, as a tensor that autograd may keep.

    A tensor that was made under ``torch.inference_mode`` cannot be saved for a backward pass. An
    ordinary one is given as it is, without a gradient.
    """
    import torch

    if tensor is None or not tensor.is_inference():
        return None if tensor is None else tensor.detach()
    with torch.inference_mode(False), torch.no_grad():
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        return empty.set_(tensor.untyped_storage(), *place)


def ordinary_copy(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy that owes nothing to ComfyUI: contiguous, on the CPU, without a gradient.

    It is float32, or of `dtype`. ComfyUI computes under ``torch.inference_mode``; such tensors can
    be neither trained on nor changed elsewhere.
    """
    import torch

    with torch.inference_mode(False), torch.no_grad():
        return tensor.to("cpu", dtype or torch.float32, copy=True).contiguous()
