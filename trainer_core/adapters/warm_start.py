"""Start the training of an attached adapter from a given one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..errors import AdapterError
from ..types import AdapterState, LayerState
from .attached import AttachedAdapter
from .dora import DORA_SCALE, axis_of
from .kernels.convolution import reshaped
from .kinds.registry import layer_scale, matrix_sizes
from .layer.factor_layer import FactorLayer
from .resize import Resized, resize, same_sizes
from .targets import nearest
from .validate_factors import validate_factors

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Start:
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
            parts.append(f"{len(self.missing)} that it lacks start anew ({self.missing[0]}, ...)")
        return "The adapter starts from a file: " + "; ".join(parts) + "."


def start_from(module: nn.Module, adapter: AttachedAdapter, state: AdapterState) -> Start:
    """Give an adapter that was just attached the delta of another one.

    Rank, alpha, splits and options stay those of the attached adapter. Sizes that differ are fitted
    (`resizing.resize`). Where only the attached adapter has DoRA, its magnitude becomes that of the
    base with the given delta, which changes nothing.

    Args:
        module: What the adapter is attached to, by the layers' paths.
        adapter: Fresh from `attach`; changed in place.
        state: The given adapter, such as from a file.

    Returns:
        What was taken over, and with what error.

    Raises:
        AdapterError: For another kind, layers that are not adapted, or factors that cannot be
            fitted; nothing is changed then.
    """
    adapter.refuse_frozen_factors("adapter.start_from")
    if adapter.config.init == "eva":
        raise AdapterError(
            "adapter.start_from, and adapter.init is eva",
            "one of them: both say where the factors start",
            "Leave adapter.init or adapter.start_from out.",
        )
    _check_kind(adapter, state)
    validate_factors(state)
    _check_names(adapter, state)
    fresh = adapter.state()
    layers: dict[str, LayerState] = {}
    resized: dict[str, float] = {}
    for name, own in fresh.layers.items():
        given = state.layers.get(name)
        if given is None:
            layers[name] = own
            continue
        shapes = {factor: tuple(tensor.shape) for factor, tensor in own.tensors.items()}
        given = replace(given, tensors=reshaped(given.tensors, shapes))
        _check_layer(name, state.kind, given, own)
        fitted = _resize(name, state.kind, given, own)
        magnitude = given.tensors.get(DORA_SCALE, own.tensors.get(DORA_SCALE))
        kept = {} if magnitude is None else {DORA_SCALE: magnitude}
        layers[name] = replace(own, tensors={**fitted.tensors, **kept})
        if not same_sizes(given, own.tensors):
            resized[name] = fitted.error
    adapter.load_state(AdapterState(state.kind, layers, fresh.settings))
    for name, given in state.layers.items():
        if adapter.config.dora and DORA_SCALE not in given.tensors:
            _measure_magnitude(module.get_submodule(name))
    return Start(
        taken=tuple(name for name in state.layers if name not in resized),
        resized=resized,
        missing=tuple(name for name in fresh.layers if name not in state.layers),
    )


def _resize(name: str, kind: str, given: LayerState, own: LayerState) -> Resized:
    try:
        return resize(kind, given, own.tensors, layer_scale(kind, own))
    except AdapterError as error:
        raise AdapterError(
            f"adapter.start_from: {name}: {error.found}", error.expected, error.remedy
        ) from error


def _measure_magnitude(layer: nn.Module) -> None:
    assert isinstance(layer, FactorLayer)
    magnitude = layer.factors()[DORA_SCALE]
    with torch.no_grad():
        magnitude.copy_(layer.norm().view(magnitude.shape))


def _check_kind(adapter: AttachedAdapter, state: AdapterState) -> None:
    if state.kind != adapter.kind:
        raise AdapterError(
            f"adapter.start_from: an adapter of kind {state.kind}",
            f"kind {adapter.kind}, as adapter.kind says",
            f"Set adapter.kind to {state.kind}, or choose another file.",
        )


def _check_names(adapter: AttachedAdapter, state: AdapterState) -> None:
    foreign = sorted(set(state.layers) - set(adapter.names))
    if foreign:
        shown = ", ".join(foreign[:_SHOWN]) + (", ..." if len(foreign) > _SHOWN else "")
        raise AdapterError(
            f"adapter.start_from: {len(foreign)} layers of the file are not adapted: {shown}",
            "a file whose layers are all among those that adapter.targets selects",
            "Name them in adapter.targets or adapter.include. Nearest adapted layers: "
            f"{nearest(foreign[0], adapter.names)}.",
        )


def _check_layer(name: str, kind: str, given: LayerState, own: LayerState) -> None:
    found, wanted = matrix_sizes(kind, given), matrix_sizes(kind, own)
    if found != wanted:
        raise AdapterError(
            f"adapter.start_from: {name} is {_times(found)} in the file",
            f"{_times(wanted)}, as in the base",
            "Choose the base that the adapter was trained on, or another file.",
        )
    if DORA_SCALE not in given.tensors:
        return
    axis = axis_of(given.tensors[DORA_SCALE])
    if DORA_SCALE not in own.tensors or axis_of(own.tensors[DORA_SCALE]) != axis:
        raise AdapterError(
            f"adapter.start_from: {name} has a DoRA magnitude of the {axis} axis in the file",
            "adapter.dora and adapter.dora_axis as in the file",
            f"Set adapter.dora to true and adapter.dora_axis to {axis}.",
        )


def _times(size: tuple[int, int]) -> str:
    return " x ".join(map(str, size))


__all__ = ["Start", "start_from"]
