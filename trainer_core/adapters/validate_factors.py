"""Factors that somebody gives, such as those of a file: whether they are an adapter's at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor

from ..errors import AdapterError
from ..tensors.finiteness import all_finite
from ..types import AdapterState, LayerState
from .dora import DORA_SCALE
from .kernels.convolution import CORES, as_matrices
from .kinds.registry import KINDS

_PAIRS = {
    "lora": (("lora_up", "lora_down"),),
    "loha": (("hada_w1_a", "hada_w1_b"), ("hada_w2_a", "hada_w2_b")),
    "lokr": (("lokr_w1_a", "lokr_w1_b"), ("lokr_w2_a", "lokr_w2_b")),
}
"""Factors that are multiplied, by kind; lokr may have a whole one for a pair."""


def check_given(state: AdapterState) -> None:
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


def given_size(kind: str, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Rows and columns of the delta of factors that `check_given` lets pass, as a matrix."""
    matrices, rows, columns = as_matrices(tensors), 1, 1
    pairs = _PAIRS[kind] if kind == "lokr" else _PAIRS[kind][:1]
    for up, down in pairs:
        whole = up.removesuffix("_a")
        left, right = (whole, whole) if whole != up and whole in matrices else (up, down)
        rows, columns = rows * matrices[left].shape[0], columns * matrices[right].shape[1]
    return rows, columns


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
    for up, down in _PAIRS[kind]:
        if kind == "lokr" and up.removesuffix("_a") in tensors:
            continue
        missing = [name for name in (up, down) if name not in tensors]
        if missing:
            yield f"lacks {' and '.join(missing)}"
    for core, (up, down) in CORES.items():
        if core in tensors and not {up, down} <= set(tensors):
            yield f"has {core} without {up} and {down}"
        elif core in tensors and tensors[core].shape[1] != tensors[down].shape[0]:
            yield f"has {core} and {down} of {_shapes(tensors, core, down)}"
    matrices = as_matrices(tensors)
    for up, down in _PAIRS[kind]:
        if up in matrices and matrices[up].shape[1] != matrices[down].shape[0]:
            yield f"has {up} and {down} of {_shapes(tensors, up, down)}"


def _shapes(tensors: Mapping[str, Tensor], *names: str) -> str:
    return " and ".join(str(tuple(tensors[name].shape)) for name in names)
