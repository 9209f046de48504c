"""Layout ``lycoris``: Diffusers' names, with ``_`` for each dot."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...types import AdapterState
from ..factors.outlines import Layers, outlines_of
from ..factors.whole_layers import undivided_layers
from ..names.key_map import KeyMap
from .comfyui import check_parts, plan_native
from .write_plan import Options, WritePlan, piece_of, refuse_patches, refuse_same_names, with_alpha

LYCORIS_PREFIX = "lycoris_"


def plan_lycoris(state: AdapterState, key_map: KeyMap, options: Options) -> WritePlan:
    """LyCORIS's names: Diffusers', with ``_`` for each dot.

    A layer that is undivided has only ComfyUI's name, and then all layers get these: LyCORIS reads
    them beside a model of these names. ComfyUI reads none of them.

    Raises:
        AdapterError: When two layers get the same name, parts of a fused layer do not fit each
            other, or the adapter has more than factors.
    """
    refuse_patches(state, "lycoris")
    if undivided_layers(state.layers, key_map):
        return plan_native(state, key_map, replace(options, fused=True), _spell)
    check_parts(state.kind, outlines_of(state), key_map)

    def encode(layers: Layers) -> dict[str, Tensor]:
        return {
            key: tensor
            for module, layer in layers.items()
            for key, tensor in with_alpha(_spell(module), state.kind, layer).items()
        }

    refuse_same_names(_spell(name) for name in state.layers)
    return WritePlan(tuple(piece_of(state, name, [name], encode) for name in state.layers))


def _spell(name: str) -> str:
    return LYCORIS_PREFIX + name.replace(".", "_")
