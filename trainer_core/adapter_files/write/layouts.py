"""The layouts of adapter files: how an adapter becomes the tensors of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.fuse import (
    FusedLayer,
    fused_layer,
    may_share_factors,
    refuse_unfusable,
    shares_factors,
    split_sizes,
)
from ..factors.whole_layers import is_undivided, undivided_layers
from ..names.key_map import DIFFUSERS_PREFIX, NATIVE_PREFIX, KeyMap, NativeKey
from ..names.key_parsing import HALVES_EXCHANGED
from ..names.row_slices import InexactCutError, cut_layer
from .diffusers_layout import plan_diffusers, refuse_lengths
from .peft_folder import plan_peft
from .write_plan import (
    Layers,
    Layout,
    Options,
    Piece,
    Plan,
    extras_outline,
    outlines_of,
    piece_of,
    pieces_of_extras,
    reader_rank,
    refuse_extras,
    with_alpha,
)

__all__ = ["LAYOUTS", "layout_name", "reader_rank", "split_sizes"]

KOHYA_PREFIX = "lora_unet_"
LYCORIS_PREFIX = "lycoris_"

_WHOLE = frozenset({"diff", "set_weight", "w_norm"})
"""Differences for which ComfyUI drops the factors of the same layer."""


def plan_comfyui(state: AdapterState, key_map: KeyMap, options: Options) -> Plan:
    """ComfyUI's names, with one alpha per layer.

    A whole layer is written by its native name; a part of a fused layer by its Diffusers name,
    which ComfyUI maps to a slice. ComfyUI's bypass loaders drop slices; with ``options.fused`` the
    fused layer is written instead. Of convolutions, LoRA's and LoHa's cores and LoKr's whole second
    factors get two axes for the window, whatever the layer has, and a LoKr's core is multiplied
    into its factor: ComfyUI reads no other forms.

    Raises:
        AdapterError: When a layer is unknown to the key map, or cannot be expressed.
    """
    return _plan_native(state, key_map, options, _dotted)


def plan_kohya(state: AdapterState, key_map: KeyMap, options: Options) -> Plan:
    """Names of kohya's scripts, and musubi's by default: ComfyUI's, with ``_`` for each dot.

    There is no name for a slice, so the parts of a fused layer are written as that one layer.

    Raises:
        AdapterError: As `plan_comfyui`, and for what cannot be fused.
    """
    return _plan_native(state, key_map, replace(options, fused=True), _flat)


def plan_lycoris(state: AdapterState, key_map: KeyMap, options: Options) -> Plan:
    """LyCORIS's names: Diffusers', with ``_`` for each dot.

    A layer that is undivided has only ComfyUI's name, and then all layers get these: LyCORIS reads
    them beside a model of these names. ComfyUI reads none of them.

    Raises:
        AdapterError: When two layers get the same name, parts of a fused layer do not fit each
            other, or the adapter has more than factors.
    """
    refuse_extras(state, "lycoris")
    if undivided_layers(state.layers, key_map):
        return _plan_native(state, key_map, replace(options, fused=True), _flat_lycoris)
    _check_parts(state.kind, outlines_of(state), key_map)

    def prefix(module: str) -> str:
        return LYCORIS_PREFIX + module.replace(".", "_")

    def encode(layers: Layers) -> dict[str, Tensor]:
        return {
            key: tensor
            for module, layer in layers.items()
            for key, tensor in with_alpha(prefix(module), state.kind, layer).items()
        }

    _refuse_same_names(prefix(name) for name in state.layers)
    return Plan(tuple(piece_of(state, name, [name], encode) for name in state.layers))


LAYOUTS: Mapping[str, Layout] = {
    "comfyui": plan_comfyui,
    "diffusers": plan_diffusers,
    "peft": plan_peft,
    "kohya": plan_kohya,
    "lycoris": plan_lycoris,
}


def layout_name(stem: str, layout: str) -> str:
    """What a run's adapter is called in a layout: a file, or a folder for ``peft``.

    Args:
        stem: The run's name.
        layout: The layout.
    """
    own = stem if layout == "comfyui" else f"{stem}_{layout}"
    return own if layout == "peft" else f"{own}.safetensors"


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers that are written under one name.

    Attributes:
        name: The name in the file.
        modules: The layers.
        native: ComfyUI's name of what is written; None for a slice.
        fused: What the fused layer is made of; None where nothing is fused.
        turned: Whether the two halves of its rows are exchanged.
    """

    name: str
    modules: tuple[str, ...]
    native: str | None
    fused: FusedLayer | None = None
    turned: bool = False


def _dotted(native: str) -> str:
    return NATIVE_PREFIX + native


def _flat(native: str) -> str:
    return KOHYA_PREFIX + native.replace(".", "_")


def _flat_lycoris(native: str) -> str:
    return LYCORIS_PREFIX + native.replace(".", "_")


def _plan_native(
    state: AdapterState, key_map: KeyMap, options: Options, spell: Callable[[str], str]
) -> Plan:
    outlines = outlines_of(state)
    refuse_lengths(
        outlines,
        "output",
        "lengths of the input axis: ComfyUI up to 0.33 divides those of the output axis by the "
        "norm of the base's weight alone",
        "Train with adapter.dora_axis: input; kind lora can also be exported as 'diffusers'. Or "
        "convert it with --base PATH, which writes the difference itself, or as a lora with "
        "--approximate lora --rank N --base PATH.",
    )
    _check_parts(state.kind, outlines, key_map)
    groups = list(_groups(state, outlines, key_map, options, spell))
    _refuse_same_names(group.name for group in groups)
    for group in groups:
        _refuse_both(state, group)
    return Plan(
        (
            *(_piece_of_group(state, group, options) for group in groups),
            *pieces_of_extras(state, spell),
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
        turned = is_turned(name, key_map)
        if not native.part and not turned:
            yield _Group(spell(native.name), (name,), native.name)
        elif not options.fused:
            yield _Group(DIFFUSERS_PREFIX + name, (name,), None)
        elif turned:
            yield _Group(spell(native.name), (name,), native.name, turned=True)
        elif parts[native.name][0] == name:
            modules = tuple(parts[native.name])
            fused = _fused_layer(state, outlines, key_map, options, native.name, modules)
            yield _Group(spell(native.name), modules, native.name, fused)


def _check_parts(kind: str, outlines: Layers, key_map: KeyMap) -> None:
    """Refuse parts that are no slices of one layer: ComfyUI would find none of these sizes there.

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


def native_key(name: str, key_map: KeyMap) -> NativeKey:
    """ComfyUI's place of a layer, also of one whose rows lie in another order there.

    Args:
        name: The layer's path.
        key_map: The family's names.

    Raises:
        AdapterError: When the family has no such layer.
    """
    native = key_map.to_native(name)
    if native is not None:
        return native
    # ComfyUI keeps the halves of such a layer in the opposite order, and exchanges them itself
    # where it is spelt by its Diffusers name.
    turned = next((host for host in key_map.host_names if host.swapped and host.path == name), None)
    if turned is not None:
        return NativeKey(turned.native)
    if is_undivided(name, key_map):
        return NativeKey(name)
    raise AdapterError(
        f"layer {name!r} has no native name in this family",
        "layers that the family's key map knows",
        "Use layout 'diffusers', or leave the layer out with adapter.exclude.",
    )


def is_turned(name: str, key_map: KeyMap) -> bool:
    """Whether the two halves of a layer's rows are in the opposite order in ComfyUI's model."""
    return any(host.swapped and host.path == name for host in key_map.host_names)


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
        if group.turned:
            layer = _turned(group.modules[0], state.kind, layer)
        return with_alpha(group.name, state.kind, layer)

    return piece_of(state, group.native or group.modules[0], group.modules, encode)


def _turned(name: str, kind: str, layer: LayerState) -> LayerState:
    try:
        return cut_layer(kind, layer, HALVES_EXCHANGED)
    except InexactCutError as error:
        raise AdapterError(
            f"{name}: {error}",
            "a layer whose rows can be put into the order that they have in ComfyUI",
            "Choose layout 'comfyui' without fused: ComfyUI then exchanges the rows itself.",
        ) from error


def _refuse_same_names(names: Iterable[str]) -> None:
    taken: set[str] = set()
    for name in names:
        if name in taken:
            raise AdapterError(
                f"two adapted layers are both written as {name!r}",
                "one name for each layer",
                "This is a fault of the family's key map; please report it.",
            )
        taken.add(name)


def _refuse_both(state: AdapterState, group: _Group) -> None:
    """Refuse factors beside a difference of the same weight: ComfyUI keeps only one of them."""
    if group.native is None or group.native not in state.extras:
        return
    ending = next((e for e in extras_outline(state, group.native) if e in _WHOLE), None)
    if ending is not None:
        raise AdapterError(
            f"{group.native} has factors and {group.native}.{ending}",
            "one of them: ComfyUI loads the difference and passes over the factors",
            "Choose layout 'diffusers' with --extras drop, if the factors are the adapter.",
        )
