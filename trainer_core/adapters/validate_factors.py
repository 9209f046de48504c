"""Factors that somebody gives, such as those of a file: whether they are an adapter's at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor

from ..errors import AdapterError
from ..tensors.rounding import all_finite
from ..types import AdapterState, LayerState
from .dora import DORA_SCALE
from .kernels.convolution import as_matrices
from .kinds.registry import FILE_RULES, KINDS


def validate_factors(state: AdapterState) -> None:
    """Refuse a state that is no adapter.

    Raises:
        AdapterError: For one without layers, or whose factors are missing, do not fit together or
            are no finite numbers.
    """
    if not state.layers:
        raise AdapterError(
            "the given adapter has no layers", "factors of at least one", "Give another file."
        )
    for name, layer in state.layers.items():
        for mistake in _mistakes(state.kind, layer):
            raise AdapterError(
                f"the given adapter: {name} {mistake}",
                f"the factors of a {state.kind}, which fit together",
                "Give another file, or make this one again.",
            )


def _mistakes(kind: str, layer: LayerState) -> Iterator[str]:
    if layer.rank < 1 or not math.isfinite(layer.alpha) or layer.alpha == 0.0:
        yield f"has the rank {layer.rank} and the alpha {layer.alpha}"
    for name, tensor in layer.tensors.items():
        if name not in (*KINDS[kind].factor_names, DORA_SCALE):
            yield f"has {name}, which is no factor of this kind"
        elif not tensor.is_floating_point() or tensor.dim() < 2 or not tensor.numel():
            yield f"has {name} of {tensor.dtype} {tuple(tensor.shape)}"
        elif not all_finite(tensor):
            yield f"has a number in {name} that is not finite"
    yield from _misfits(kind, layer.tensors)


def _misfits(kind: str, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Factors that are missing, or cannot be multiplied."""
    mistake = FILE_RULES[kind].mistake(tensors)
    if mistake:
        yield mistake
    pairs = FILE_RULES[kind].pairs
    for pair in pairs:
        missing = [name for name in (pair.up, pair.down) if name not in tensors]
        if missing and pair.whole not in tensors:
            yield f"lacks {' and '.join(missing)}"
        elif pair.core in tensors and missing:
            yield f"has {pair.core} without {pair.up} and {pair.down}"
        elif pair.core in tensors and tensors[pair.core].shape[1] != tensors[pair.down].shape[0]:
            yield f"has {pair.core} and {pair.down} of {_shapes(tensors, pair.core, pair.down)}"
    matrices = as_matrices(tensors)
    for up, down in ((pair.up, pair.down) for pair in pairs):
        if up in matrices and matrices[up].shape[1] != matrices[down].shape[0]:
            yield f"has {up} and {down} of {_shapes(tensors, up, down)}"


def _shapes(tensors: Mapping[str, Tensor], *names: str) -> str:
    return " and ".join(str(tuple(tensors[name].shape)) for name in names)
