"""The registry of adapter kinds, and what a layer's state means."""

from __future__ import annotations

from torch import Tensor

from ...types import LayerState
from ..kernels.convolution import as_matrices
from .kind import Kind
from .loha import LOHA
from .lokr import LOKR
from .lora import LORA

KINDS: dict[str, Kind] = {kind.name: kind for kind in (LORA, LOHA, LOKR)}


def layer_scale(kind: str, layer: LayerState) -> float:
    """The number that multiplies a layer's delta: alpha / rank, or 1 where the kind says so."""
    return KINDS[kind].scale(layer.tensors, layer.alpha, layer.rank)


def layer_delta(kind: str, layer: LayerState) -> Tensor:
    """The weight difference that a layer's factors stand for, in their own dtype.

    Returns:
        `[out, in]`; of a convolution its weight as a matrix, `[out, in * window]`.
    """
    return KINDS[kind].delta(as_matrices(layer.tensors), layer_scale(kind, layer))
