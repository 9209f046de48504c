"""The frozen weight behind an adapted layer, as a matrix where that is possible."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ..errors import AdapterError

DENSE_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Number formats that torch computes with directly."""

_STORED_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def is_dense(weight: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a weight can be read, and written, as a tensor of a shape."""
    return weight.dtype in DENSE_DTYPES and weight.shape == shape and not weight.is_meta


def dense_weight(layer: nn.Module) -> Tensor:
    """The layer's weight as a tensor that can be computed with.

    Args:
        layer: A Linear or convolution of any class: its weight may be dense, an 8-bit
            floating-point format without a scale of its own, or quantised by a library that PEFT
            knows.

    Returns:
        `[out, in]` or `[out, in, *kernel]`: the weight itself where it is dense, else a new tensor.

    Raises:
        AdapterError: When nobody knows how to read it.
    """
    weight = cast("Tensor", layer.weight)
    if weight.dtype in DENSE_DTYPES and weight.dim() >= 2 and type(weight) in _PLAIN:
        return weight
    if weight.dtype in _STORED_DTYPES and type(weight) in _PLAIN:
        return weight.to(torch.bfloat16)
    return _dequantised(layer, weight)


_PLAIN = (Tensor, nn.Parameter)


def _dequantised(layer: nn.Module, weight: Tensor) -> Tensor:
    from peft.utils.integrations import dequantize_module_weight

    try:
        dense = dequantize_module_weight(layer)
        if dense.dtype not in DENSE_DTYPES:
            raise TypeError(f"it reads as {dense.dtype}")
    except (TypeError, AttributeError, NotImplementedError, ValueError) as error:
        raise AdapterError(
            f"a {type(layer).__name__} with a weight of {weight.dtype} {tuple(weight.shape)}, "
            f"which cannot be read ({error})",
            "a weight that can be read as a matrix, for the lengths that DoRA trains",
            "Set adapter.dora to false, or load the base in bf16.",
        ) from error
    return dense.detach()
