"""Factors and weights that FSDP keeps in parts, one in each process.

While a wrapped module runs, its tensors are whole. Source: torch 2.13, `torch.distributed.fsdp`.
"""

from __future__ import annotations

from torch import Tensor

from ...errors import AdapterError


def is_part(tensor: Tensor) -> bool:
    """Whether this process holds only a part of a factor or weight, which has two axes or more.

    A part of FSDP2 (`fully_shard`) knows how to get the rest, one of `FullyShardedDataParallel` is
    a piece of a vector.
    """
    return hasattr(tensor, "full_tensor") or (tensor.dim() < 2 and tensor.is_floating_point())


def whole(tensor: Tensor, name: str) -> Tensor:
    """A factor as a whole, wherever its parts are.

    Parts of FSDP2 are gathered, for which every process has to ask at once.

    Args:
        tensor: A factor.
        name: The layer, for the message.

    Returns:
        The tensor itself where it is whole already.

    Raises:
        AdapterError: When it is a part that cannot be gathered from here.
    """
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor()  # type: ignore[operator]
    if is_part(tensor):
        raise AdapterError(
            f"{name} has a factor of shape {tuple(tensor.shape)}: FSDP keeps the rest elsewhere",
            "whole factors",
            "Ask inside of `with FullyShardedDataParallel.summon_full_params(module):`.",
        )
    return tensor


def refuse_part(weight: Tensor, name: str, purpose: str) -> None:
    """Refuse a weight whose other parts are in other processes.

    Args:
        weight: A layer's frozen weight.
        name: The layer.
        purpose: What needs it as a whole.

    Raises:
        AdapterError: When it is a part.
    """
    if is_part(weight):
        raise AdapterError(
            f"{name} has a weight that FSDP keeps in parts",
            f"the whole weight, for {purpose}",
            "Wrap a block around the layer, or the adapted layer, instead of the Linear in it; "
            "merge before anything is wrapped.",
        )
