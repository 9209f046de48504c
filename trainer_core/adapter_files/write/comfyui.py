"""Keys of layers in the layouts ``comfyui`` and ``kohya``, with ComfyUI's names, and ``lycoris``.

Layout ``lycoris`` has Diffusers' names with ``_`` for each dot, and ComfyUI's where it must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from ...adapters.kinds.registry import FILE_RULES, LOW_RANK
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.fuse_layers import (
    FusedLayer,
    fused_layer,
    may_share_factors,
    refuse_undivided,
    refuse_unfusable,
    shares_factors,
    undivided_layers,
)
from ..factors.outlines import Layers, outlines_of, patch_outline
from ..factors.split_fused import InexactSliceError, slice_layer
from ..names.key_layouts import REPLACING
from ..names.key_map import DIFFUSERS_PREFIX, NATIVE_PREFIX, KeyMap, is_swapped, native_key
from ..names.layer_match import HALVES_SWAPPED
from ..names.text_encoder_names import is_text_layer, kohya_name
from .diffusers import named_as_diffusers
from .write_plan import (
    Options,
    Piece,
    WritePlan,
    layer_pieces,
    patch_pieces,
    piece_of,
    refuse_magnitude,
    refuse_patches,
    refuse_same_names,
    refuse_text_encoder,
    with_alpha,
)


def plan_comfyui(state: AdapterState, key_map: KeyMap, options: Options) -> WritePlan:
    """ComfyUI's names, with one alpha per layer.

    A whole layer is written by its native name; a part of a fused layer by its Diffusers name,
    which ComfyUI maps to a slice. ComfyUI's bypass loaders drop slices; with ``options.fused`` the
    fused layer is written instead. Of convolutions, LoRA's and LoHa's cores and LoKr's whole second
    factors get two axes for the window, whatever the layer has, and a LoKr's core is multiplied
    into its factor: ComfyUI reads no other forms.

    Raises:
        AdapterError: When a layer is unknown to the key map, or cannot be expressed.
    """
    return plan_native(state, key_map, options, lambda native: NATIVE_PREFIX + native)


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers that are written under one name; ComfyUI's ``native`` one is None for a slice."""

    name: str
    modules: tuple[str, ...]
    native: str | None
    fused: FusedLayer | None = None
    swapped: bool = False


def plan_native(
    state: AdapterState, key_map: KeyMap, options: Options, spell: Callable[[str], str]
) -> WritePlan:
    """The tensors of an adapter by ComfyUI's names of its layers, as ``spell`` writes them.

    Those of a text encoder have kohya's names, which every ComfyUI knows.

    Raises:
        AdapterError: As `plan_comfyui`.
    """

    def spelt(native: str) -> str:
        if is_text_layer(native):
            return kohya_name(native, key_map.text_encoders)
        return spell(native)

    refuse_undivided(state, key_map, "ComfyUI's model", welcome=KeyMap.is_comfyuis)
    outlines = outlines_of(state)
    refuse_magnitude(
        outlines,
        "output",
        "a magnitude of the input axis: ComfyUI up to 0.33 divides that of the output axis by the "
        "norm of the base's weight alone",
        f"Train with adapter.dora_axis: input; kind {LOW_RANK} can also be exported as "
        "'diffusers'. Or convert it with --base PATH, which writes the difference itself, or as "
        f"a {LOW_RANK} with --approximate {LOW_RANK} --rank N --base PATH.",
    )
    check_parts(state.kind, outlines, key_map)
    groups = list(_groups(state, outlines, key_map, options=options, spell=spelt))
    refuse_same_names(group.name for group in groups)
    for group in groups:
        _refuse_both(state, group)
    return WritePlan(
        (
            *(_piece_of_group(state, group, options) for group in groups),
            *patch_pieces(state, spell),
        )
    )


def _groups(
    state: AdapterState,
    outlines: Layers,
    key_map: KeyMap,
    options: Options,
    spell: Callable[[str], str],
) -> Iterator[_Group]:
    """Sort the layers by the name that they are written under, in their own order."""
    parts: dict[str, list[str]] = {}
    natives = {name: native_key(name, key_map) for name in outlines}
    for name, native in natives.items():
        parts.setdefault(native.name, []).append(name)
    for name, native in natives.items():
        swapped = is_swapped(name, key_map)
        if not native.part and not swapped:
            yield _Group(spell(native.name), (name,), native.name)
        elif key_map.is_fused_only(native.name):
            if parts[native.name][0] == name:
                modules = tuple(parts[native.name])
                fused = _fused_layer(
                    state, outlines, key_map, options=options, native=native.name, modules=modules
                )
                yield _Group(spell(native.name), modules, native.name, fused)
        elif not options.fused and not (swapped and FILE_RULES[state.kind].multiplies):
            # What multiplies has to find the rows as ComfyUI has them.
            yield _Group(DIFFUSERS_PREFIX + name, (name,), None)
        elif swapped:
            yield _Group(spell(native.name), (name,), native.name, swapped=True)
        elif parts[native.name][0] == name:
            modules = tuple(parts[native.name])
            fused = _fused_layer(
                state, outlines, key_map, options=options, native=native.name, modules=modules
            )
            yield _Group(spell(native.name), modules, native.name, fused)


def check_parts(kind: str, outlines: Layers, key_map: KeyMap) -> None:
    """Refuse parts that are not slices of one layer: ComfyUI would find none of these sizes there.

    Raises:
        AdapterError: When their sizes do not fit each other.
    """
    natives: dict[str, dict[str, LayerState]] = {}
    for name, layer in outlines.items():
        native = key_map.to_native(name)
        if native is not None and native.part and key_map.parts(native.name):
            natives.setdefault(native.name, {})[name] = layer
    for native, own in natives.items():
        fused_layer(native, kind, key_map.parts(native), own)


def _fused_layer(
    state: AdapterState,
    outlines: Layers,
    key_map: KeyMap,
    options: Options,
    native: str,
    modules: tuple[str, ...],
) -> FusedLayer:
    own = {name: outlines[name] for name in modules}
    for name, layer in own.items():
        refuse_unfusable(native, name, layer)
    fused = fused_layer(native, state.kind, key_map.parts(native), own)
    shared = (
        not options.approximated
        and may_share_factors(state.kind, own)
        and shares_factors(state.kind, {name: state.layers[name] for name in modules})
    )
    return replace(fused, shared=shared)


def _piece_of_group(state: AdapterState, group: _Group, options: Options) -> Piece:
    def encode(layers: Layers) -> dict[str, Tensor]:
        if group.fused is not None:
            layer = options.fuse(group.fused, layers)
        else:
            layer = layers[group.modules[0]]
        if group.swapped:
            layer = _with_swapped_halves(group.modules[0], state.kind, layer)
        return with_alpha(group.name, state.kind, layer)

    return piece_of(state, group.native or group.modules[0], group.modules, encode)


def _with_swapped_halves(name: str, kind: str, layer: LayerState) -> LayerState:
    try:
        return slice_layer(kind, layer, HALVES_SWAPPED)
    except InexactSliceError as error:
        raise AdapterError(
            f"{name}: {error}",
            "a layer whose rows can be put into the order that they have in ComfyUI",
            "Choose layout 'comfyui' without fused: ComfyUI then exchanges the rows itself.",
        ) from error


def _refuse_both(state: AdapterState, group: _Group) -> None:
    """Refuse factors beside a difference of the same weight: ComfyUI keeps only one of them."""
    if group.native is None or group.native not in state.extras:
        return
    ending = next((e for e in patch_outline(state, group.native) if e in REPLACING), None)
    if ending is not None:
        raise AdapterError(
            f"{group.native} has factors and {group.native}.{ending}",
            "one of them: ComfyUI loads the difference and passes over the factors",
            "Choose layout 'diffusers' with --extras drop, if the factors are the adapter.",
        )


def plan_kohya(state: AdapterState, key_map: KeyMap, options: Options) -> WritePlan:
    """Names of kohya's scripts, and musubi's by default: ComfyUI's, with ``_`` for each dot.

    There is no name for a slice, so the parts of a fused layer are written as that one layer. Of
    SD 1.5 and SD 2 the scripts have Diffusers' names.

    Raises:
        AdapterError: As `plan_comfyui`, and for what cannot be fused.
    """

    def spell(native: str) -> str:
        return _flat("lora_unet_", key_map.kohya_name(native))

    return plan_native(state, key_map, replace(options, fused=True), spell)


def plan_lycoris(state: AdapterState, key_map: KeyMap, options: Options) -> WritePlan:
    """LyCORIS's names: Diffusers', with ``_`` for each dot.

    A layer that is undivided has only ComfyUI's name, and then all layers get these: LyCORIS reads
    them beside a model of these names. ComfyUI reads none of them.

    Raises:
        AdapterError: When two layers get the same name, parts of a fused layer do not fit each
            other, ComfyUI knows a layer by its own name alone, or the adapter has more than
            factors.
    """
    spell = partial(_flat, "lycoris_")
    refuse_patches(state, "lycoris")
    refuse_text_encoder(state, "lycoris")
    state = named_as_diffusers(state, key_map, "lycoris")
    if undivided_layers(state.layers, key_map):
        return plan_native(state, key_map, replace(options, fused=True), spell)
    unnamed = next(filter(key_map.is_native_only, state.layers), None)
    if unnamed is not None:
        raise AdapterError(
            f"layer {unnamed!r}, for which ComfyUI has no LyCORIS name",
            "layers that ComfyUI finds by their Diffusers names with _ for each dot",
            "Choose layout 'comfyui' or 'kohya', or leave the layer out with adapter.exclude.",
        )
    check_parts(state.kind, outlines_of(state), key_map)
    refuse_same_names(map(spell, state.layers))
    return WritePlan(
        layer_pieces(state, lambda name, layer: with_alpha(spell(name), state.kind, layer))
    )


def _flat(prefix: str, name: str) -> str:
    return prefix + name.replace(".", "_")
