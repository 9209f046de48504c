"""What a layer's factors change about a weight, and the weight with that change.

Without DoRA the change is the delta D, whatever the weight. With DoRA it is

    m * (W + D) / |W + D| - W

with the lengths m and the norm over the axis that the lengths have. A strength multiplies the
change as a whole, so that 0 gives W and 1 the trained layer; ComfyUI blends DoRA so too
(``comfy/weight_adapter/base.py``). On the output axis ComfyUI up to 0.33 divides by ``|W|``
instead; the formula here is the paper's, PEFT's and LyCORIS's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE, axis_of, ratio, squared_norms
from ...adapters.kinds.registry import layer_delta
from ...errors import AdapterError
from ...types import LayerState
from .fuse import matrix_sizes


def layer_change(kind: str, layer: LayerState, weight: Tensor) -> Tensor:
    """Compute what a layer's factors change about a weight at strength 1.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        layer: The factors.
        weight: The base's weight `[out, in]`, or `[out, in, *kernel]` of a convolution. Only DoRA
            looks at its values.

    Returns:
        A new tensor of the weight's shape, at least in float32.

    Raises:
        AdapterError: When the factors are of another size than the weight.
    """
    check_size(kind, layer, tuple(weight.shape))
    delta = layer_delta(kind, layer).reshape(weight.shape)
    lengths = layer.tensors.get(DORA_SCALE)
    if lengths is None:
        return delta.to(torch.promote_types(delta.dtype, torch.float32))
    dtype = torch.promote_types(torch.promote_types(delta.dtype, weight.dtype), torch.float32)
    own = weight.to(dtype)
    total = own + delta
    if axis_of(lengths) == "output":
        squares = total.flatten(1).square().sum(dim=1)
        shape = (-1, *(1,) * (weight.dim() - 1))
    else:
        # A convolution's column is all places of its window.
        squares = total.flatten(2).square().sum(dim=2) if weight.dim() > 2 else total.square()
        squares = squares.sum(dim=0)
        shape = (1, -1, *(1,) * (weight.dim() - 2))
    stretch = ratio(lengths.to(dtype).reshape(shape), squares.sqrt().reshape(shape))
    return total.mul_(stretch).sub_(own)


def stretch_of(layer: LayerState, weight: Tensor) -> float | None:
    """How many times as long a DoRA's lengths are as those of a weight.

    Args:
        layer: The factors.
        weight: The base's weight `[out, in]`.

    Returns:
        The median over rows or columns; None without lengths, and where they cannot be compared.
    """
    lengths = layer.tensors.get(DORA_SCALE)
    if lengths is None or weight.dim() != 2:
        return None
    own, given = squared_norms(weight, axis_of(lengths)).sqrt(), lengths.flatten()
    there = own > 0
    if own.numel() != given.numel() or not bool(there.any()):
        return None
    return float((given[there] / own[there]).median())


def check_size(kind: str, layer: LayerState, shape: tuple[int, ...]) -> None:
    """Refuse factors that make a delta of another size than a weight.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        layer: The factors, or their outlines.
        shape: The weight's.

    Raises:
        AdapterError: When they do not fit.
    """
    rows, columns = shape[0], 1
    for side in shape[1:]:
        columns *= side
    found = matrix_sizes(kind, layer.tensors)
    lengths = layer.tensors.get(DORA_SCALE)
    sides = () if lengths is None else tuple(lengths.shape[:2])
    if found != (rows, columns) or (sides and sides not in ((shape[0], 1), (1, shape[1]))):
        beside = f" with lengths {sides}" if sides else ""
        raise AdapterError(
            f"a {kind} of {found[0]} x {found[1]}{beside} for a weight of "
            + " x ".join(map(str, shape)),
            "an adapter of the same sizes as the base",
            "Choose the base that the adapter was trained on.",
        )


__all__ = ["check_size", "layer_change", "stretch_of"]
