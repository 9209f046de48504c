"""An adapter in the form that a layout can hold, where it cannot hold the given one.

Layers are adapted when they are asked for, one at a time, so that neither a whole adapter nor the
differences of all its layers are ever in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE, axis_of
from ...adapters.kinds.registry import FILE_RULES, LOW_RANK
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.effective_delta import effective_delta
from ..factors.fuse_layers import (
    fused_layer,
    has_column_magnitude,
    joined_weights,
    refuse_undivided,
    undivided_parts,
)
from ..factors.outlines import (
    Layers,
    LazyMapping,
    is_convolution,
    is_outline,
    outline_of,
    outlines_of,
    patch_outline,
)
from ..factors.split_fused import take_rows
from ..names.key_map import KeyMap, is_swapped, native_key
from ..names.layer_match import WHOLE, LayerRows
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
    name
    for name, rules in FILE_RULES.items()
    if name == LOW_RANK or not (rules.stacks or rules.multiplies)
)
"""Kinds that layers may be approximated as: a plain product, or a fused layer of their own kind."""

_HOSTS = ("comfyui", "kohya")
"""Layouts that hold weight patches."""


@dataclass(frozen=True, slots=True)
class ConversionOptions:
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
class Adapted:
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


def adapt_to_layout(state: AdapterState, key_map: KeyMap, wanted: ConversionOptions) -> Adapted:
    """Bring an adapter into a form that a layout holds, as far as the wanted allows.

    What need not be adapted, or may not, stays as it is; writing then refuses what the layout
    cannot hold.

    Raises:
        AdapterError: When what is wished for is not possible, or needs the base or a rank.
    """
    outlines = outlines_of(state)
    if wanted.weight_of is not None:
        wanted = replace(wanted, weight_of=joined_weights(wanted.weight_of, key_map))
    kind = wanted.form or state.kind
    unheld = {
        name
        for name, layer in outlines.items()
        if DORA_SCALE in layer.tensors
        and not _holds_magnitude(kind, name, layer, key_map=key_map, wanted=wanted)
    }
    if wanted.form == LOW_RANK and FILE_RULES[state.kind].multiplies:
        unheld = set(outlines)
    if wanted.form == LOW_RANK:
        return _as_low_rank(state, unheld, key_map, wanted)
    refuse_undivided(state, key_map, "ComfyUI's model", welcome=KeyMap.is_comfyuis)
    adapted = Adapted(state, Options(fused=wanted.fused), {})
    if unheld and wanted.weight_of is not None and wanted.layout in _HOSTS:
        adapted = _merged(
            state,
            outlines,
            unheld,
            key_map=key_map,
            weight_of=wanted.weight_of,
            options=adapted.options,
        )
    if wanted.form is not None:
        if state.kind != wanted.form:
            raise AdapterError(
                f"a {state.kind}, to be approximated as a {wanted.form}",
                f"a {wanted.form}, of whose parts a fused layer is made; others are fused without "
                "error",
                "Leave --approximate out.",
            )
        fuse = partial(fused_nearest, errors=adapted.errors)
        adapted = replace(adapted, options=replace(adapted.options, fuse=fuse))
    return adapted


def _holds_magnitude(
    kind: str, name: str, layer: LayerState, key_map: KeyMap, wanted: ConversionOptions
) -> bool:
    """Whether a layout's readers compute a layer's DoRA magnitude as it was trained."""
    axis = axis_of(layer.tensors[DORA_SCALE])
    if wanted.layout == "lycoris":
        return True
    if wanted.layout not in _HOSTS:
        return FILE_RULES[kind].peft_dora and axis == "output"
    fuses = wanted.fused or wanted.layout == "kohya"
    return axis == "input" and not (fuses and native_key(name, key_map).part)


def _as_low_rank(
    state: AdapterState, unheld: Collection[str], key_map: KeyMap, wanted: ConversionOptions
) -> Adapted:
    errors: dict[str, float] = {}
    sources: dict[str, LayerRows] = {}
    for name in state.layers:
        parts = undivided_parts(name, key_map)
        # A magnitude of the fused layer's columns goes with all of its rows, while it is kept.
        kept = state.kind == LOW_RANK or has_column_magnitude(outline_of(state.layers, name))
        if parts and (name in unheld or not kept):
            sources |= {module: LayerRows(name, cut) for module, cut in parts}
        else:
            sources[name] = LayerRows(name, WHOLE)

    def made(name: str, layer: LayerState) -> LayerState:
        source = sources[name]
        if state.kind == LOW_RANK and source.name not in unheld:
            return layer
        whole = source.name in unheld
        nearest = _nearest_low_rank(
            state.kind, name, layer, source=source, wanted=wanted, whole=whole
        )
        if not is_outline(layer):
            errors[name] = nearest.error
        return nearest.layer

    layers = _made(state.layers, {name: source.name for name, source in sources.items()}, made)
    options = Options(fused=wanted.fused, approximated=state.kind != LOW_RANK or bool(unheld))
    return Adapted(replace(state, kind=LOW_RANK, layers=layers), options, errors)


def _nearest_low_rank(
    kind: str,
    name: str,
    layer: LayerState,
    source: LayerRows,
    wanted: ConversionOptions,
    *,
    whole: bool,
) -> Approximated:
    """A layer as a LoRA: its delta or, as a whole, what it and its magnitude change together."""
    if not whole:
        if source.cut == WHOLE:
            return as_low_rank(name, kind, layer, wanted.rank)
        return rows_as_low_rank(name, kind, layer, cut=source.cut, rank=wanted.rank)
    if wanted.weight_of is None or wanted.rank is None:
        magnitude = DORA_SCALE in layer.tensors
        what = f"has a DoRA magnitude, which layout {wanted.layout!r} does not hold"
        changes = "the magnitude stretches"
        if not magnitude:
            what, changes = f"({kind}) multiplies the base's weight", "the layer multiplies"
        raise AdapterError(
            f"{name} {what}",
            f"the base's weights, which {changes}, and a rank",
            "Name the base and the rank: --base PATH --rank N.",
        )
    if is_outline(layer):
        known = FILE_RULES[kind].multiplies
        weight = wanted.weight_of(source.name) if known else None
        delta = _outline_of_delta(kind, name, layer, weight)
    else:
        delta = effective_delta(kind, layer, wanted.weight_of(source.name))
    rows = delta if source.cut == WHOLE else take_rows(delta, source.cut)
    return matrix_as_low_rank(rows, wanted.rank)


def _merged(
    state: AdapterState,
    outlines: Layers,
    unheld: Collection[str],
    key_map: KeyMap,
    weight_of: WeightOf,
    options: Options,
) -> Adapted:
    natives = {name: native_key(name, key_map).name for name in outlines}
    # ComfyUI keeps either factors or a difference of a weight, so that all parts go together.
    wanted = {natives[name]: [] for name in outlines if name in unheld}
    for name, native in natives.items():
        if native in wanted:
            wanted[native].append(name)
    for native in wanted:
        if native in state.extras and "diff" in patch_outline(state, native):
            raise AdapterError(
                f"{native} has a DoRA magnitude and a difference (diff) besides",
                "one of them: ComfyUI loads only the difference",
                "Leave the difference out on purpose: --extras drop.",
            )
    merged = tuple(name for name in outlines if natives[name] in wanted)
    kept = [name for name in outlines if natives[name] not in wanted]
    layers = _made(state.layers, {name: name for name in kept}, lambda name, layer: layer)
    extras = _with_differences(state, wanted, key_map, weight_of)
    return Adapted(replace(state, layers=layers, extras=extras), options, {}, merged)


def _made(
    layers: Layers, names: Mapping[str, str], make: Callable[[str, LayerState], LayerState]
) -> LazyMapping[LayerState]:
    """Layers that are each made of a given one, or of its outline, when they are asked for."""
    return LazyMapping(
        names,
        lambda name: make(name, layers[names[name]]),
        lambda name: make(name, outline_of(layers, names[name])),
    )


def _with_differences(
    state: AdapterState,
    groups: Mapping[str, Sequence[str]],
    key_map: KeyMap,
    weight_of: WeightOf,
) -> LazyMapping[Mapping[str, Tensor]]:
    """An adapter's own weight patches, and beside them those that stand for groups of modules."""

    def change(name: str, layer: LayerState) -> Tensor:
        return effective_delta(state.kind, layer, weight_of(name))

    def outline_of_change(name: str, layer: LayerState) -> Tensor:
        if is_convolution(layer):
            # The factors of a convolution do not tell its window.
            return torch.empty(weight_of(name).shape, dtype=_dtype_of(layer), device="meta")
        return _outline_of_delta(state.kind, name, layer)

    def make(native: str) -> Mapping[str, Tensor]:
        if native not in groups:
            return state.extras[native]
        layers = {name: state.layers[name] for name in groups[native]}
        difference = _difference(native, state.kind, key_map, layers=layers, make=change)
        return {**state.extras.get(native, {}), "diff": difference}

    def outline(native: str) -> Mapping[str, Tensor]:
        own = patch_outline(state, native) if native in state.extras else {}
        if native not in groups:
            return own
        layers = {name: outline_of(state.layers, name) for name in groups[native]}
        difference = _difference(native, state.kind, key_map, layers=layers, make=outline_of_change)
        return {**own, "diff": difference}

    return LazyMapping(dict.fromkeys([*state.extras, *groups]), make, outline)


def _difference(
    native: str,
    kind: str,
    key_map: KeyMap,
    layers: Layers,
    make: Callable[[str, LayerState], Tensor],
) -> Tensor:
    """What a layer's parts change, one below the other; zeros for parts that are not there."""
    first = next(iter(layers))
    if is_swapped(first, key_map):
        return torch.cat(make(first, layers[first]).chunk(2)[::-1])
    if not native_key(first, key_map).part:
        return make(first, layers[first])
    fused = fused_layer(native, kind, key_map.parts(native), layers)
    made = {name: make(name, layer) for name, layer in layers.items()}
    some = made[first]
    rows = [
        made.get(name, torch.zeros(count, fused.columns, dtype=some.dtype, device=some.device))
        for name, count in fused.rows.items()
    ]
    return torch.cat(rows)


def _dtype_of(layer: LayerState) -> torch.dtype:
    return next(iter(layer.tensors.values())).dtype


def _outline_of_delta(
    kind: str, name: str, layer: LayerState, weight: Tensor | None = None
) -> Tensor:
    """The outline of a Linear's difference; where the factors do not tell it, of its weight."""
    if is_convolution(layer) or (weight is not None and weight.dim() > 2):
        raise AdapterError(
            f"{name} is a convolution",
            "Linear layers to approximate",
            "Choose layout 'comfyui', which holds the layer or its difference as it is.",
        )
    factors = {n: tensor for n, tensor in layer.tensors.items() if n != DORA_SCALE}
    sizes = FILE_RULES[kind].sizes(factors) if weight is None else weight.shape
    return torch.empty(sizes, dtype=_dtype_of(layer), device="meta")
