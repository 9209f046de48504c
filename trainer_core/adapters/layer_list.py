"""The layers of an adapter, as ``doctor`` and the panel list them.

Layers that differ in their numbers alone stand on one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..printable import grouped
from .attachment import AttachedAdapter

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A number that is a part of a layer's name."""


def adapted_layers(adapter: AttachedAdapter) -> dict[str, dict[str, Any]]:
    """Each layer of an adapter: its shape, rank, parameters and the shapes of its factors."""
    plans, state = {plan.name: plan for plan in adapter.plans}, adapter.state()
    return {
        name: {
            "shape": [plans[name].outputs, plans[name].inputs, *plans[name].kernel],
            "rank": layer.rank,
            "parameters": sum(tensor.numel() for tensor in layer.tensors.values()),
            "factors": {factor: list(tensor.shape) for factor, tensor in layer.tensors.items()},
        }
        for name, layer in state.layers.items()
    }


def layer_kinds(layers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What `adapted_layers` gave, with one line for layers that differ in their numbers alone."""
    return layer_lines((name, _in_words(**each)) for name, each in layers.items())


def layer_lines(described: Iterable[tuple[str, str]]) -> list[str]:
    """Count the layers of each kind, a line each, by names and what is to be said of each."""
    counts = Counter((NUMBER.sub("*", name), words) for name, words in described)
    return [f"{count} x {name}: {words}" for (name, words), count in counts.items()]


def shape_in_words(shape: Iterable[int]) -> str:
    """A shape such as ``64 x 16``."""
    return " x ".join(map(str, shape))


def _in_words(
    shape: Iterable[int], rank: int, parameters: int, factors: Mapping[str, Iterable[int]]
) -> str:
    listed = ", ".join(f"{name} {shape_in_words(each) or 1}" for name, each in factors.items())
    return f"{shape_in_words(shape)}, rank {rank}, {grouped(parameters)} ({listed})"
