"""An adapter whose layers are called as ComfyUI calls them, under Diffusers' names."""

from __future__ import annotations

from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.outlines import LazyMapping, outline_of
from ..names.key_map import KeyMap
from ..names.text_names import is_text_layer


def named_as_diffusers(state: AdapterState, key_map: KeyMap, layout: str) -> AdapterState:
    """Give each layer the name that it has in Diffusers' model, for a layout; no value is read.

    A text encoder's layers have the same names everywhere.

    Raises:
        AdapterError: When Diffusers' name of a layer is not known.
    """
    names = key_map.diffusers
    if names is None:
        return state
    own: dict[str, str] = {}
    for name in state.layers:
        path = name if is_text_layer(name) else names.paths.get(name)
        if path is None:
            raise AdapterError(
                f"layout {layout!r} for {name!r}, a layer without a known name in Diffusers' model",
                "layout 'comfyui' or 'kohya': a model that is trained as ComfyUI has it keeps "
                "ComfyUI's names, and Diffusers' are known of Stable Diffusion's UNets alone",
                "Choose layout 'comfyui'. Of a family that the trainer knows by name, the node "
                "Convert Adapter makes Diffusers' file of it afterwards.",
            )
        own[path] = name

    def read(path: str) -> LayerState:
        return state.layers[own[path]]

    def outline(path: str) -> LayerState:
        return outline_of(state.layers, own[path])

    return AdapterState(state.kind, LazyMapping(own, read, outline), state.settings, state.extras)
