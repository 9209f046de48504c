"""An adapter in the form that a layout can hold, where it cannot hold the given one.

Layers are changed when they are asked for, one at a time, so that neither a whole adapter nor the
differences of all its layers are ever in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE, axis_of
from ...adapters.kinds.registry import FILE_RULES, LOW_RANK
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.effective_delta import layer_change
from ..factors.fuse import fused_layer
from ..factors.outlines import (
    Layers,
    extras_outline,
    is_convolution,
    is_outline,
    outline_of,
    outlines_of,
)
from ..factors.whole_layers import has_column_lengths, joined_weights, undivided_parts
from ..names.comfyui_names import is_swapped, native_key
from ..names.key_map import KeyMap
from ..names.row_slices import WHOLE, take_rows
from ..read.module_mapping import Source
from ..write.write_plan import Options
from .approximate import (
    Approximated,
    as_low_rank,
    fused_nearest,
    matrix_as_low_rank,
    rows_as_low_rank,
)

WeightOf = Callable[[str], Tensor]
"""A module's path to the base's weight of it, at least in float32."""

APPROXIMATIONS = tuple(
    name for name, rules in FILE_RULES.items() if name == LOW_RANK or not rules.stacks
)
"""Kinds that layers may be approximated as: a plain product, or a fused layer of their own kind."""

_HOSTS = ("comfyui", "kohya")
"""Layouts that hold differences which are no factors."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a conversion may do besides what is exact.

    Attributes:
        layout: The layout to convert to.
        fused: As in `Options`.
        form: The form that layers may be approximated in; None approximates nothing.
        rank: The most that the rank of an approximation may be.
        weight_of: Gives the base's weights; None where no base is at hand.
    """

    layout: str
    fused: bool = False
    form: str | None = None
    rank: int | None = None
    weight_of: WeightOf | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """An adapter in a form that can be written.

    Attributes:
        state: The adapter; its layers are made when they are asked for.
        options: How its layout is to be written.
        errors: Approximated layer to its relative error, filled while layers are made.
        merged: Layers that became differences of their weight.
    """

    state: AdapterState
    options: Options
    errors: dict[str, float]
    merged: tuple[str, ...] = ()


def change(state: AdapterState, key_map: KeyMap, wish: Wish) -> Changed:
    """Bring an adapter into a form that a layout holds, as far as the wish allows.

    What need not be changed, or may not, stays as it is; writing then refuses what the layout
    cannot hold.

    Args:
        state: The adapter.
        key_map: The family's names.
        wish: What may be done.

    Raises:
        AdapterError: When what is wished for is not possible, or needs the base or a rank.
    """
    outlines = outlines_of(state)
    if wish.weight_of is not None:
        wish = replace(wish, weight_of=joined_weights(wish.weight_of, key_map))
    kind = wish.form or state.kind
    unheld = {
        name
        for name, layer in outlines.items()
        if DORA_SCALE in layer.tensors and not _holds_lengths(kind, name, layer, key_map, wish)
    }
    if wish.form == LOW_RANK:
        return _as_low_rank(state, unheld, key_map, wish)
    changed = Changed(state, Options(fused=wish.fused), {})
    if unheld and wish.weight_of is not None and wish.layout in _HOSTS:
        changed = _merged(state, outlines, unheld, key_map, wish.weight_of, changed.options)
    if wish.form is not None:
        if state.kind != wish.form:
            raise AdapterError(
                f"a {state.kind}, to be approximated as a {wish.form}",
                f"a {wish.form}, of whose parts a fused layer is made; others are fused without "
                "error",
                "Leave --approximate out.",
            )
        fuse = partial(fused_nearest, errors=changed.errors)
        changed = replace(changed, options=replace(changed.options, fuse=fuse))
    return changed


def _holds_lengths(kind: str, name: str, layer: LayerState, key_map: KeyMap, wish: Wish) -> bool:
    """Whether a layout's readers compute a layer's DoRA lengths as they were trained."""
    axis = axis_of(layer.tensors[DORA_SCALE])
    if wish.layout == "lycoris":
        return True
    if wish.layout not in _HOSTS:
        return FILE_RULES[kind].peft_dora and axis == "output"
    fuses = wish.fused or wish.layout == "kohya"
    return axis == "input" and not (fuses and native_key(name, key_map).part)


def _as_low_rank(
    state: AdapterState, unheld: Collection[str], key_map: KeyMap, wish: Wish
) -> Changed:
    errors: dict[str, float] = {}
    sources: dict[str, Source] = {}
    for name in state.layers:
        parts = undivided_parts(name, key_map)
        # Lengths of the fused layer's columns go with all of its rows, while they are kept.
        kept = state.kind == LOW_RANK or has_column_lengths(outline_of(state.layers, name))
        if parts and (name in unheld or not kept):
            sources |= {module: Source(name, cut) for module, cut in parts}
        else:
            sources[name] = Source(name, WHOLE)

    def made(name: str, layer: LayerState) -> LayerState:
        source = sources[name]
        if state.kind == LOW_RANK and source.name not in unheld:
            return layer
        whole = source.name in unheld
        nearest = _nearest_low_rank(state.kind, name, layer, source, wish, whole=whole)
        if not is_outline(layer):
            errors[name] = nearest.error
        return nearest.layer

    layers = _Made(state.layers, {name: source.name for name, source in sources.items()}, made)
    options = Options(fused=wish.fused, approximated=state.kind != LOW_RANK or bool(unheld))
    return Changed(replace(state, kind=LOW_RANK, layers=layers), options, errors)


def _nearest_low_rank(
    kind: str, name: str, layer: LayerState, source: Source, wish: Wish, *, whole: bool
) -> Approximated:
    """A layer as a LoRA: its delta or, as a whole, what it and its lengths change together."""
    if not whole:
        if source.cut == WHOLE:
            return as_low_rank(name, kind, layer, wish.rank)
        return rows_as_low_rank(name, kind, layer, source.cut, wish.rank)
    if wish.weight_of is None or wish.rank is None:
        raise AdapterError(
            f"{name} has DoRA lengths, which layout {wish.layout!r} does not hold",
            "the base's weights, which the lengths stretch, and a rank",
            "Name the base and the rank: --base PATH --rank N.",
        )
    if is_outline(layer):
        change = _outline_of_change(kind, name, layer)
    else:
        change = layer_change(kind, layer, wish.weight_of(source.name))
    rows = change if source.cut == WHOLE else take_rows(change, source.cut)
    return matrix_as_low_rank(rows, wish.rank)


def _merged(
    state: AdapterState,
    outlines: Layers,
    unheld: Collection[str],
    key_map: KeyMap,
    weight_of: WeightOf,
    options: Options,
) -> Changed:
    natives = {name: native_key(name, key_map).name for name in outlines}
    # ComfyUI keeps either factors or a difference of a weight, so that all parts go together.
    wanted = {natives[name]: [] for name in outlines if name in unheld}
    for name, native in natives.items():
        if native in wanted:
            wanted[native].append(name)
    for native in wanted:
        if native in state.extras and "diff" in extras_outline(state, native):
            raise AdapterError(
                f"{native} has DoRA lengths and a difference (diff) besides",
                "one of them: ComfyUI loads only the difference",
                "Leave the difference out on purpose: --extras drop.",
            )
    merged = tuple(name for name in outlines if natives[name] in wanted)
    kept = [name for name in outlines if natives[name] not in wanted]
    layers = _Made(state.layers, {name: name for name in kept}, lambda name, layer: layer)
    extras = _Differences(state, wanted, key_map, weight_of)
    return Changed(replace(state, layers=layers, extras=extras), options, {}, merged)


class _Made(Mapping[str, LayerState]):
    """Layers that are each made of a given one when they are asked for.

    Args:
        layers: The given ones.
        names: Name of a layer to that of the given one.
        make: Makes a layer, or its outline, by its name and the given one.
    """

    def __init__(
        self,
        layers: Layers,
        names: Mapping[str, str],
        make: Callable[[str, LayerState], LayerState],
    ) -> None:
        self._layers = layers
        self._names = names
        self._make = make

    def __getitem__(self, name: str) -> LayerState:
        return self._make(name, self._layers[self._names[name]])

    def outline(self, name: str) -> LayerState:
        """The layer on the meta device."""
        return self._make(name, outline_of(self._layers, self._names[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Differences(Mapping[str, Mapping[str, Tensor]]):
    """An adapter's own differences, and beside them those that stand for layers.

    Args:
        state: The adapter.
        groups: ComfyUI's name of a layer to the modules whose rows it has.
        key_map: The family's names.
        weight_of: Gives the base's weights.
    """

    def __init__(
        self,
        state: AdapterState,
        groups: Mapping[str, Sequence[str]],
        key_map: KeyMap,
        weight_of: WeightOf,
    ) -> None:
        self._state = state
        self._groups = groups
        self._key_map = key_map
        self._weight_of = weight_of

    def __getitem__(self, native: str) -> Mapping[str, Tensor]:
        own = self._state.extras.get(native, {})
        if native not in self._groups:
            return self._state.extras[native]
        layers = {name: self._state.layers[name] for name in self._groups[native]}
        return {**own, "diff": self._difference(native, layers, self._change)}

    def outline(self, native: str) -> Mapping[str, Tensor]:
        """The differences on the meta device."""
        own = extras_outline(self._state, native) if native in self._state.extras else {}
        if native not in self._groups:
            return own
        layers = {name: outline_of(self._state.layers, name) for name in self._groups[native]}
        return {**own, "diff": self._difference(native, layers, self._outline)}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._state.extras, *self._groups]))

    def __len__(self) -> int:
        return len(set(self._state.extras) | set(self._groups))

    def _change(self, name: str, layer: LayerState) -> Tensor:
        return layer_change(self._state.kind, layer, self._weight_of(name))

    def _outline(self, name: str, layer: LayerState) -> Tensor:
        if is_convolution(layer):
            # The factors of a convolution do not tell its window.
            shape = self._weight_of(name).shape
            return torch.empty(shape, dtype=_dtype_of(layer), device="meta")
        return _outline_of_change(self._state.kind, name, layer)

    def _difference(
        self, native: str, layers: Layers, make: Callable[[str, LayerState], Tensor]
    ) -> Tensor:
        """What a layer's parts change, one below the other; zeros for parts that are not there."""
        first = next(iter(layers))
        if is_swapped(first, self._key_map):
            return torch.cat(make(first, layers[first]).chunk(2)[::-1])
        if not native_key(first, self._key_map).part:
            return make(first, layers[first])
        fused = fused_layer(native, self._state.kind, self._key_map.parts(native), layers)
        made = {name: make(name, layer) for name, layer in layers.items()}
        some = made[first]
        rows = [
            made.get(name, torch.zeros(count, fused.columns, dtype=some.dtype, device=some.device))
            for name, count in fused.rows.items()
        ]
        return torch.cat(rows)


def _dtype_of(layer: LayerState) -> torch.dtype:
    return next(iter(layer.tensors.values())).dtype


def _outline_of_change(kind: str, name: str, layer: LayerState) -> Tensor:
    if is_convolution(layer):
        raise AdapterError(
            f"{name} is a convolution",
            "Linear layers to approximate",
            "Choose layout 'comfyui', which holds the layer or its difference as it is.",
        )
    factors = {n: tensor for n, tensor in layer.tensors.items() if n != DORA_SCALE}
    return torch.empty(FILE_RULES[kind].sizes(factors), dtype=_dtype_of(layer), device="meta")
