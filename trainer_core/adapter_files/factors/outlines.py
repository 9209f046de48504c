"""Layers and weight patches as tensors of the meta device: shapes and number formats, no values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from torch import Tensor

from ...types import AdapterState, LayerState

Layers = Mapping[str, LayerState]
Value = TypeVar("Value")


class LazyMapping(Mapping[str, Value]):
    """Values that are read or made at each look-up, and tell their outlines before.

    Args:
        outline: Makes the same of tensors of the meta device, in the number formats that they are
            kept in.
    """

    def __init__(
        self,
        names: Collection[str],
        make: Callable[[str], Value],
        outline: Callable[[str], Value],
    ) -> None:
        self.outline = outline
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Value:
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def outline_of(layers: Layers, name: str) -> LayerState:
    """A layer with tensors of the meta device, in the number formats that they are kept in."""
    if hasattr(layers, "outline"):
        return cast("LazyMapping[LayerState]", layers).outline(name)
    layer = layers[name]
    tensors = {factor: tensor.to("meta") for factor, tensor in layer.tensors.items()}
    return replace(layer, tensors=tensors)


def outlines_of(state: AdapterState) -> dict[str, LayerState]:
    """The outlines of all layers of an adapter."""
    return {name: outline_of(state.layers, name) for name in state.layers}


def patch_outline(state: AdapterState, native: str) -> Mapping[str, Tensor]:
    """The weight patches of a layer, by ComfyUI's name, as tensors of the meta device."""
    extras = state.extras
    if hasattr(extras, "outline"):
        return cast("LazyMapping[Mapping[str, Tensor]]", extras).outline(native)
    return {ending: tensor.to("meta") for ending, tensor in extras[native].items()}


def is_outline(layer: LayerState) -> bool:
    """Whether a layer has shapes alone."""
    return any(tensor.is_meta for tensor in layer.tensors.values())


def is_convolution(layer: LayerState) -> bool:
    """Whether a layer or its outline is of a convolution, as far as its factors show it."""
    return bool(layer.kernel) or any(tensor.dim() > 2 for tensor in layer.tensors.values())
