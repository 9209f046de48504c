"""Layers that stay as ComfyUI fuses them, because no factors of their kind are their parts.

Most fused layers of a file are read as the modules that they consist of (`row_slices`). A LoKr
whose parts begin inside a block of its first factor is not, and neither is one with DoRA of the
columns, whose magnitude is that of the fused layer. Such a layer stays whole in an `AdapterState`,
under ComfyUI's name. Layouts with ComfyUI's names hold it as it is; its rows can be computed, so
that a LoRA of each part can be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE, axis_of
from ...adapters.kinds.registry import KINDS, LOW_RANK, matrix_sizes
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..names.key_map import KeyMap
from ..names.key_parsing import native_modules
from ..names.row_slices import RowSlice, put_rows
from .effective_delta import effective_delta
from .outlines import outline_of

MAKE_LOW_RANK = (
    "Make a LoRA of it: adapter-trainer convert IN OUT --to LAYOUT --approximate "
    f"{LOW_RANK} --rank N"
)


def is_undivided(name: str, key_map: KeyMap) -> bool:
    """Whether a layer of an adapter is one of ComfyUI's that is no module here."""
    return key_map.to_native(name) is None and key_map.is_divided(name)


def undivided_layers(names: Iterable[str], key_map: KeyMap) -> list[str]:
    """Those of an adapter's layers that are undivided."""
    return [name for name in names if is_undivided(name, key_map)]


def undivided_parts(name: str, key_map: KeyMap) -> tuple[tuple[str, RowSlice], ...]:
    """The modules of an undivided layer, each with its rows; empty for a module."""
    return native_modules(name, key_map) if is_undivided(name, key_map) else ()


def refuse_undivided(state: AdapterState, key_map: KeyMap, place: str, remedy: str = "") -> None:
    """Refuse undivided layers where the modules themselves are needed.

    Args:
        state: The adapter.
        key_map: The family's names.
        place: What needs them, such as ``layout 'peft'``.
        remedy: What can be done besides a LoRA; none by default.

    Raises:
        AdapterError: When there is one; the message names the first.
    """
    names = undivided_layers(state.layers, key_map)
    if not names:
        return
    modules = ", ".join(module for module, _ in undivided_parts(names[0], key_map))
    layer = outline_of(state.layers, names[0])
    if has_column_magnitude(layer):
        why, base = "its DoRA magnitude is that of the fused layer's columns", " --base PATH"
    else:
        why, base = f"its parts begin inside blocks of the {state.kind}'s first factor", ""
    raise AdapterError(
        f"{names[0]} ({state.kind}), one layer in the file and {modules} here; no {state.kind} is "
        f"such a part, because {why} ({len(names)} such layers in all)",
        f"layers of which {place} can have each part",
        f"{remedy} {MAKE_LOW_RANK}{base}.".strip(),
    )


def joined_weights(weight_of: Callable[[str], Tensor], key_map: KeyMap) -> Callable[[str], Tensor]:
    """Give the weights of undivided layers too.

    Args:
        weight_of: A module's path to its weight.
        key_map: The family's names.

    Returns:
        The path of a module, or the name of an undivided layer, to its weight.
    """

    def joined(name: str) -> Tensor:
        parts = undivided_parts(name, key_map)
        if not parts:
            return weight_of(name)
        weights = {module: weight_of(module) for module, _ in parts}
        first = next(iter(weights.values()))
        whole = first.new_empty(sum(map(len, weights.values())), *first.shape[1:])
        for module, cut in parts:
            put_rows(whole, cut, weights[module])
        return whole

    return joined


def undivided_delta(
    state: AdapterState, name: str, weight_of: Callable[[str], Tensor], key_map: KeyMap
) -> Tensor:
    """Compute what an undivided layer changes, as `effective_delta`.

    Args:
        state: The adapter.
        name: The layer.
        weight_of: A module's path to its weight; asked only where the difference depends on it.
        key_map: The family's names.
    """
    layer = state.layers[name]
    if needs_weight(state.kind, layer):
        return effective_delta(state.kind, layer, joined_weights(weight_of, key_map)(name))
    shape = matrix_sizes(state.kind, layer)
    return effective_delta(state.kind, layer, torch.empty(1).expand(shape))  # only its shape counts


def needs_weight(kind: str, layer: LayerState) -> bool:
    """Whether what a layer adds depends on the base's weight."""
    return DORA_SCALE in layer.tensors or KINDS[kind].multiplies


def has_column_magnitude(layer: LayerState) -> bool:
    """Whether a layer has DoRA of its columns, which only all of its rows together have."""
    magnitude = layer.tensors.get(DORA_SCALE)
    return magnitude is not None and axis_of(magnitude) == "input"
