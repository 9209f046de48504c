"""Warm start: factors of an adapter file, checked and resized, as the start of a new adapter.

Sizes are fitted to the closest delta that the wanted ones can hold. Everything is computed in
float64 on the CPU. Closeness is the Frobenius norm of the difference of the deltas, and an error is
that norm over the norm of the given delta. A kind's own rule is in its `FileRules.fit`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ..errors import AdapterError
from ..tensors.rounding import all_finite
from ..types import AdapterState, LayerState
from .dora_magnitude import DORA_SCALE, axis_of
from .kernels.convolution import CORES, as_matrices, reshaped_factors
from .kinds.file_rules import FileRules
from .kinds.registry import FILE_RULES, KINDS, layer_scale, matrix_sizes
from .targets import nearest_layers

if TYPE_CHECKING:
    from .attachment import AttachedAdapter
    from .layer.factor_layer import FactorLayer


def validate_factors(state: AdapterState) -> None:
    """Refuse a state that is not an adapter.

    Raises:
        AdapterError: For one without layers, or whose factors are missing, do not fit together or
            are not finite numbers.
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
            yield f"has {name}, which is not a factor of this kind"
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
    stored, wanted = (
        {name: tuple(tensor.shape) for name, tensor in _without_magnitude(factors).items()}
        for factors in (layer.tensors, fresh)
    )
    return stored == wanted


def resize(kind: str, layer: LayerState, fresh: Mapping[str, Tensor], scale: float) -> Resized:
    """Fit a layer's factors to the sizes of a new one's, whose delta is zero.

    Factors that have the wanted sizes already are taken as they are. A larger rank is exact: the
    new part has the initialization of a new layer, so that it can learn. A smaller rank keeps the
    largest singular values. DoRA's magnitude is passed over. The wanted layer's delta is multiplied
    by `scale`. Gives the factors and what was lost.

    Raises:
        AdapterError: For a loha that does not fit into a smaller rank, or a wanted Tucker core of
            other sizes.
    """
    rules = FILE_RULES[kind]
    wanted, stored = _without_magnitude(fresh), _without_magnitude(layer.tensors)
    ratio = layer_scale(kind, layer) / scale
    if same_sizes(layer, fresh):
        fitted, error = _rescaled(rules, stored, ratio), 0.0
    elif not all(bool(tensor.any()) for tensor in stored.values()):
        fitted, error = wanted, 0.0
    else:
        _refuse_cores(wanted)
        matrices, start = (
            as_matrices({name: tensor.double() for name, tensor in factors.items()})
            for factors in (stored, wanted)
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


_SHOWN = 5


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What was taken over.

    Attributes:
        taken: Layers whose factors are the given ones.
        resized: Layers of other sizes, to the relative error of the delta.
        missing: Layers that the given adapter lacks; they start as usual.
    """

    taken: tuple[str, ...]
    resized: Mapping[str, float]
    missing: tuple[str, ...]

    def summary(self) -> str:
        """One line for the run's log."""
        parts = [f"{len(self.taken)} layers as they are"]
        if self.resized:
            worst = max(self.resized, key=self.resized.__getitem__)
            middle = statistics.median(self.resized.values())
            parts.append(
                f"{len(self.resized)} resized (relative error of the delta: median {middle:.2g}, "
                f"worst {self.resized[worst]:.2g} at {worst})"
            )
        if self.missing:
            parts.append(
                f"{len(self.missing)} that it lacks start untrained ({self.missing[0]}, ...)"
            )
        return "The adapter starts from a file: " + "; ".join(parts) + "."


def start_from(module: nn.Module, adapter: AttachedAdapter, state: AdapterState) -> WarmStart:
    """Give an adapter that was just attached to a module the delta of another one, in place.

    Rank, alpha, splits and options stay those of the attached adapter. Sizes that differ are fitted
    (`resize`). Where only the attached adapter has DoRA, its magnitude becomes that of the base
    with the given delta, which changes nothing. Gives what was taken over, and with what error.

    Raises:
        AdapterError: For another kind, layers that are not adapted, or factors that cannot be
            fitted; nothing is changed then.
    """
    require_start(adapter, state)
    fresh = adapter.state()
    layers: dict[str, LayerState] = {}
    resized: dict[str, float] = {}
    for name, own in fresh.layers.items():
        stored = state.layers.get(name)
        if stored is None:
            layers[name] = own
            continue
        shapes = {factor: tuple(tensor.shape) for factor, tensor in own.tensors.items()}
        stored = replace(stored, tensors=reshaped_factors(stored.tensors, shapes))
        fitted = _resize(name, state.kind, stored, own)
        magnitude = stored.tensors.get(DORA_SCALE, own.tensors.get(DORA_SCALE))
        kept = {} if magnitude is None else {DORA_SCALE: magnitude}
        layers[name] = replace(own, tensors={**fitted.tensors, **kept})
        if not same_sizes(stored, own.tensors):
            resized[name] = fitted.error
    adapter.load_state(AdapterState(state.kind, layers, fresh.settings))
    for name, stored in state.layers.items():
        if adapter.config.dora and DORA_SCALE not in stored.tensors:
            layer = cast("FactorLayer", module.get_submodule(name))
            magnitude = layer.factors()[DORA_SCALE]
            with torch.no_grad():
                magnitude.copy_(layer.norm().view(magnitude.shape))
    return WarmStart(
        taken=tuple(name for name in state.layers if name not in resized),
        resized=resized,
        missing=tuple(name for name in fresh.layers if name not in state.layers),
    )


def require_start(adapter: AttachedAdapter, state: AdapterState) -> None:
    """Refuse to start an adapter from another one that does not fit it; its numbers are not read.

    Raises:
        AdapterError: As `start_from`, but for factors that cannot be fitted to other sizes.
    """
    adapter.refuse_frozen_factors("adapter.start_from")
    if adapter.config.init == "eva":
        raise AdapterError(
            "adapter.start_from, and adapter.init is eva",
            "one of them: both say where the factors start",
            "Leave adapter.init or adapter.start_from out.",
        )
    _check(adapter, state)
    for name, own in adapter.state().layers.items():
        if name in state.layers:
            stored, shapes = state.layers[name], {n: tuple(t.shape) for n, t in own.tensors.items()}
            fitted = replace(stored, tensors=reshaped_factors(stored.tensors, shapes))
            _check_layer(name, state.kind, fitted, own)


def _resize(name: str, kind: str, source: LayerState, own: LayerState) -> Resized:
    try:
        return resize(kind, source, own.tensors, layer_scale(kind, own))
    except AdapterError as error:
        raise AdapterError(
            f"adapter.start_from: {name}: {error.found}", error.expected, error.remedy
        ) from error


def _check(adapter: AttachedAdapter, state: AdapterState) -> None:
    if state.kind != adapter.kind:
        raise AdapterError(
            f"adapter.start_from: an adapter of kind {state.kind}",
            f"kind {adapter.kind}, as adapter.kind says",
            f"Set adapter.kind to {state.kind}, or choose another file.",
        )
    validate_factors(state)
    foreign = sorted(set(state.layers) - set(adapter.names))
    if foreign:
        shown = ", ".join(foreign[:_SHOWN]) + (", ..." if len(foreign) > _SHOWN else "")
        raise AdapterError(
            f"adapter.start_from: {len(foreign)} layers of the file are not adapted: {shown}",
            "a file whose layers are all among those that adapter.targets selects",
            "Name them in adapter.targets or adapter.include. Nearest adapted layers: "
            f"{nearest_layers(foreign[0], adapter.names)}.",
        )


def _check_layer(name: str, kind: str, source: LayerState, own: LayerState) -> None:
    found, wanted = matrix_sizes(kind, source), matrix_sizes(kind, own)
    if found != wanted:
        raise AdapterError(
            f"adapter.start_from: {name} is {found[0]} x {found[1]} in the file",
            f"{wanted[0]} x {wanted[1]}, as in the base",
            "Choose the base that the adapter was trained on, or another file.",
        )
    if DORA_SCALE not in source.tensors:
        return
    axis = axis_of(source.tensors[DORA_SCALE])
    if DORA_SCALE not in own.tensors or axis_of(own.tensors[DORA_SCALE]) != axis:
        raise AdapterError(
            f"adapter.start_from: {name} has a DoRA magnitude of the {axis} axis in the file",
            "adapter.dora and adapter.dora_axis as in the file",
            f"Set adapter.dora to true and adapter.dora_axis to {axis}.",
        )
