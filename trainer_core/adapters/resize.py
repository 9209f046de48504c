"""Give a layer's factors other sizes: the closest delta that those sizes can hold.

Everything is computed in float64 on the CPU. Closeness is the Frobenius norm of the difference of
the deltas, and an error is that norm over the norm of the given delta.

A kind's own rule is in its `FileRules.fit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..errors import AdapterError
from ..types import LayerState
from .dora import DORA_SCALE
from .kernels.convolution import CORES, as_matrices
from .kinds.file_rules import FileRules
from .kinds.registry import FILE_RULES, layer_scale

Matrices = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Resized:
    """Factors of the wanted sizes.

    Attributes:
        tensors: Factor name to tensor, in the dtype of the wanted layer's.
        error: Norm of what the delta lost over the norm of the delta; 0 where nothing was lost.
    """

    tensors: Mapping[str, Tensor]
    error: float


def same_sizes(layer: LayerState, fresh: Mapping[str, Tensor]) -> bool:
    """Whether a layer's factors, DoRA's magnitude aside, have the wanted names and shapes."""
    given, wanted = (
        {name: tuple(tensor.shape) for name, tensor in _without_magnitude(factors).items()}
        for factors in (layer.tensors, fresh)
    )
    return given == wanted


def resize(kind: str, layer: LayerState, fresh: Mapping[str, Tensor], scale: float) -> Resized:
    """Fit a layer's factors to other sizes.

    Factors that have the wanted sizes already are taken as they are. A larger rank is exact: the
    new part has the initialization of a new layer, with a delta of zero, so that it can learn. A
    smaller rank keeps the largest singular values.

    Args:
        kind: The layer's.
        layer: The given factors.
        fresh: A new layer's initialization, whose delta is zero; DoRA's magnitude is passed
            over.
        scale: What the wanted layer's delta is multiplied by.

    Returns:
        The factors and what was lost.

    Raises:
        AdapterError: For a loha that does not fit into a smaller rank, or a wanted Tucker core of
            other sizes.
    """
    rules = FILE_RULES[kind]
    wanted, given = _without_magnitude(fresh), _without_magnitude(layer.tensors)
    ratio = layer_scale(kind, layer) / scale
    if same_sizes(layer, fresh):
        fitted, error = _rescaled(rules, given, ratio), 0.0
    elif not all(bool(tensor.any()) for tensor in given.values()):
        fitted, error = wanted, 0.0
    else:
        _refuse_cores(wanted)
        matrices, start = (
            as_matrices({name: tensor.double() for name, tensor in factors.items()})
            for factors in (given, wanted)
        )
        fitted, error = rules.fit(_rescaled(rules, matrices, ratio), start)
    tensors = {n: fitted[n].to(t.dtype).reshape(t.shape).contiguous() for n, t in wanted.items()}
    return Resized(tensors, error)


def _rescaled(rules: FileRules, factors: Mapping[str, Tensor], ratio: float) -> Matrices:
    if ratio == 1.0:
        return dict(factors)
    name = next(name for name in rules.scaled_factors if name in factors)
    return {**factors, name: factors[name] * ratio}


def _without_magnitude(factors: Mapping[str, Tensor]) -> Matrices:
    return {name: tensor for name, tensor in factors.items() if name != DORA_SCALE}


def _refuse_cores(wanted: Mapping[str, Tensor]) -> None:
    core = next((name for name in wanted if name in CORES), None)
    if core is not None:
        raise AdapterError(
            f"adapter.tucker, whose {core} is {tuple(wanted[core].shape)}, and other sizes given",
            "the rank and factor of the given layer where a core stands for the window",
            "Take the same rank and factor, or set adapter.tucker to false.",
        )
