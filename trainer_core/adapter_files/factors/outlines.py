"""Layers and weight patches as tensors of the meta device: shapes and number formats, no values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from torch import Tensor

from ...types import AdapterState, LayerState

Layers = Mapping[str, LayerState]
Value = TypeVar("Value")


class LazyMapping(Mapping[str, Value]):
    """Values that are read or made at each look-up.

    Args:
        names: Their names.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


class _Outlined(Protocol):
    def outline(self, name: str) -> Any: ...


def outline_of(layers: Layers, name: str) -> LayerState:
    """A layer with tensors of the meta device, in the number formats that they are kept in.

    Args:
        layers: Layers that are in memory, or that are read when they are asked for and tell their
            outlines before (``outline(name)``).
        name: One of their names.
    """
    if hasattr(layers, "outline"):
        return cast("_Outlined", layers).outline(name)
    layer = layers[name]
    tensors = {factor: tensor.to("meta") for factor, tensor in layer.tensors.items()}
    return replace(layer, tensors=tensors)


def outlines_of(state: AdapterState) -> dict[str, LayerState]:
    """The outlines of all layers of an adapter."""
    return {name: outline_of(state.layers, name) for name in state.layers}


def patch_outline(state: AdapterState, native: str) -> Mapping[str, Tensor]:
    """A layer's weight patches, as tensors of the meta device.

    Args:
        state: The adapter, whose differences may be read when they are asked for.
        native: ComfyUI's name of the layer.
    """
    extras = state.extras
    if hasattr(extras, "outline"):
        return cast("_Outlined", extras).outline(native)
    return {ending: tensor.to("meta") for ending, tensor in extras[native].items()}


def is_outline(layer: LayerState) -> bool:
    """Whether a layer has shapes alone."""
    return any(tensor.is_meta for tensor in layer.tensors.values())


def is_convolution(layer: LayerState) -> bool:
    """Whether a layer or its outline is of a convolution, as far as its factors show it."""
    return bool(layer.kernel) or any(tensor.dim() > 2 for tensor in layer.tensors.values())
