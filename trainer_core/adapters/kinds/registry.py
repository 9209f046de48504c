"""The registry of adapter kinds, and what a layer's state means."""

from __future__ import annotations

from torch import Tensor

from ...errors import AdapterError
from ...types import LayerState
from ..kernels.convolution import as_matrices
from .file_rules import FileRules
from .kind import Kind
from .loha import LOHA, LohaFiles
from .lokr import LOKR
from .lokr_files import LokrFiles
from .lora import APPROXIMATE, LORA, LoraFiles, balanced_factors, empty_low_rank, low_rank_layer
from .oft import OFT, OftFiles

__all__ = [
    "APPROXIMATE",
    "FILE_RULES",
    "KINDS",
    "LOW_RANK",
    "balanced_factors",
    "empty_low_rank",
    "layer_delta",
    "layer_scale",
    "low_rank_layer",
    "matrix_sizes",
    "refuse_multiplying",
]

_KINDS: tuple[tuple[Kind, FileRules], ...] = (
    (LORA, LoraFiles()),
    (LOHA, LohaFiles()),
    (LOKR, LokrFiles()),
    (OFT, OftFiles()),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind, _ in _KINDS}
FILE_RULES: dict[str, FileRules] = {rules.name: rules for _, rules in _KINDS}

LOW_RANK = LORA.name
"""The kind that is a plain product: what others are approximated as, and sums are."""


def layer_scale(kind: str, layer: LayerState) -> float:
    """The number that multiplies a layer's delta: alpha / rank, or 1 where the kind says so."""
    return KINDS[kind].scale(layer.tensors, layer.alpha, layer.rank)


def layer_delta(kind: str, layer: LayerState, weight: Tensor | None = None) -> Tensor:
    """The weight difference that a layer's factors stand for, in their own dtype.

    `[out, in]`; of a convolution its weight as a matrix, `[out, in * window]`. Only a kind that
    multiplies the frozen weight looks at it.

    Raises:
        AdapterError: Without the weight that the difference depends on.
    """

    def frozen() -> Tensor:
        if weight is None:
            refuse_multiplying(kind, "a difference of weights")
        assert weight is not None
        return weight

    return KINDS[kind].difference(as_matrices(layer.tensors), layer_scale(kind, layer), frozen)


def refuse_multiplying(kind: str, what: str) -> None:
    """Refuse a kind that multiplies the weight where deltas are added, cut or fitted.

    Raises:
        AdapterError: For such a kind.
    """
    if KINDS[kind].multiplies:
        adding = [name for name, each in KINDS.items() if not each.multiplies]
        raise AdapterError(
            f"{what} of an adapter of kind {kind}, which multiplies the weight",
            f"a {', '.join(adding[:-1])} or {adding[-1]}, whose difference is the same on every "
            "weight",
            f"Make a {LOW_RANK} of it with its base: adapter-trainer convert IN OUT --to comfyui "
            f"--approximate {LOW_RANK} --rank N --base PATH.",
        )


def matrix_sizes(kind: str, layer: LayerState) -> tuple[int, int]:
    """Rows and columns of a layer's delta as a matrix; of an outline too."""
    return FILE_RULES[kind].sizes(layer.tensors)
