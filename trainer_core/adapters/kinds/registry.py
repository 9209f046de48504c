"""The registry of adapter kinds, and what a layer's state means."""

from __future__ import annotations

from torch import Tensor

from ...types import LayerState
from ..kernels.convolution import as_matrices
from .file_rules import FileRules
from .kind import Kind
from .loha import LOHA
from .loha_files import LohaFiles
from .lokr import LOKR
from .lokr_files import LokrFiles
from .lora import LORA
from .lora_files import APPROXIMATE, LoraFiles, balanced, empty_low_rank, low_rank_layer

__all__ = [
    "APPROXIMATE",
    "FILE_RULES",
    "KINDS",
    "LOW_RANK",
    "balanced",
    "empty_low_rank",
    "layer_delta",
    "layer_scale",
    "low_rank_layer",
    "matrix_sizes",
]

_KINDS: tuple[tuple[Kind, FileRules], ...] = (
    (LORA, LoraFiles()),
    (LOHA, LohaFiles()),
    (LOKR, LokrFiles()),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind, _ in _KINDS}
FILE_RULES: dict[str, FileRules] = {rules.name: rules for _, rules in _KINDS}

LOW_RANK = LORA.name
"""The kind that is a plain product: what others are approximated as, and sums are."""


def layer_scale(kind: str, layer: LayerState) -> float:
    """The number that multiplies a layer's delta: alpha / rank, or 1 where the kind says so."""
    return KINDS[kind].scale(layer.tensors, layer.alpha, layer.rank)


def layer_delta(kind: str, layer: LayerState) -> Tensor:
    """The weight difference that a layer's factors stand for, in their own dtype.

    Returns:
        `[out, in]`; of a convolution its weight as a matrix, `[out, in * window]`.
    """
    return KINDS[kind].delta(as_matrices(layer.tensors), layer_scale(kind, layer))


def matrix_sizes(kind: str, layer: LayerState) -> tuple[int, int]:
    """Rows and columns of a layer's delta as a matrix; of an outline too."""
    return FILE_RULES[kind].sizes(layer.tensors)
