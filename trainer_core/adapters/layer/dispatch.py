"""In which form, and in what precision, a frozen Linear and its adapter are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ..base.weight import is_plain


def is_watched(layer: nn.Module) -> bool:
    """Whether somebody's hook or replaced forward wants this layer to be called."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
    return any(hooks) or bool(layer._backward_pre_hooks) or "forward" in vars(layer)


def is_taken_as_it_is(x: Tensor) -> bool:
    """Whether a layer computes with the numbers of an input in their own precision."""
    return not (x.is_meta or torch.is_autocast_enabled(x.device.type))


def is_fusable(layer: nn.Module, x: Tensor) -> bool:
    """Whether a layer is an ordinary frozen Linear in the precision, and on the device, of x."""
    if type(layer) is not nn.Linear:
        return False
    weight, bias = layer.weight, layer.bias
    if weight.requires_grad or (bias is not None and bias.requires_grad):
        return False
    return is_plain(weight) and weight.dtype == x.dtype and weight.device == x.device


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Compute in the tensors' own precision: autocast would round products of float32 factors."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def keeping_precision(
    convert: Callable[[Tensor], Tensor], kept: Iterable[Tensor]
) -> Callable[[Tensor], Tensor]:
    """Make a conversion move some tensors only, where it would give them fewer bits.

    Args:
        convert: What ``module.to`` does to every tensor.
        kept: The tensors, by identity.
    """
    own = {id(tensor): tensor for tensor in kept}

    def apply(tensor: Tensor) -> Tensor:
        converted = convert(tensor)
        if id(tensor) in own and converted.dtype.itemsize < tensor.dtype.itemsize:
            return tensor.to(converted.device)
        return converted

    return apply
