"""Layout ``diffusers``: the scale multiplied into a factor, and no alpha."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial

from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.registry import APPROXIMATE, FILE_RULES, LOW_RANK, layer_scale
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.fuse_layers import refuse_undivided, with_divided_layers
from ..factors.outlines import Layers, LazyMapping, is_convolution, outline_of, outlines_of
from ..names.key_layouts import MAGNITUDE
from ..names.key_map import DIFFUSERS_PREFIX, KeyMap
from ..names.text_encoder_names import is_text_layer
from ..read.peft_config import HEADER_KEY
from .write_plan import Options, WritePlan, layer_pieces, refuse_magnitude, refuse_patches

_PLAIN = {FILE_RULES[LOW_RANK].pairs[0].up, FILE_RULES[LOW_RANK].pairs[0].down}
"""Factors of a convolution that PEFT computes with."""


def plan_diffusers(state: AdapterState, key_map: KeyMap, options: Options) -> WritePlan:
    """Diffusers' names, with the scale multiplied into a factor and no alpha.

    Diffusers has no LoHa; it is written as the LoRA of rank r^2 that equals it exactly.

    Raises:
        AdapterError: When Diffusers could not read the LoKr's factorisation, or a layer is a
            convolution.
    """
    del options
    state = with_divided_layers(named_as_diffusers(state, key_map, "diffusers"), key_map)
    prefix = DIFFUSERS_PREFIX if key_map.diffusers is None else key_map.diffusers.prefix
    outlines = peft_outlines(state, key_map, "diffusers")
    rules = FILE_RULES[state.kind]
    problem = rules.diffusers_problem(outlines)
    if problem is not None:
        raise AdapterError(*problem)
    header = _mixed_rank_header(outlines, prefix) if state.kind == LOW_RANK else {}
    return WritePlan(layer_pieces(state, partial(_encode, state.kind, prefix)), header)


def peft_outlines(state: AdapterState, key_map: KeyMap, layout: str) -> dict[str, LayerState]:
    """The outlines of an adapter that PEFT, with which Diffusers reads too, can compute.

    Raises:
        AdapterError: When it has weight patches, undivided layers, convolutions, which PEFT
            computes without the base's dilation and groups, or DoRA that PEFT does not have.
    """
    refuse_patches(state, layout)
    keep = "Choose layout 'comfyui' or 'kohya', which hold the layer as it is."
    refuse_undivided(state, key_map, f"layout {layout!r}", keep)
    outlines = outlines_of(state)
    # A UNet's convolutions have neither dilation nor groups.
    plain = key_map.diffusers is not None and state.kind == LOW_RANK
    for name, layer in outlines.items():
        if is_convolution(layer) and not (plain and set(layer.tensors) == _PLAIN):
            raise AdapterError(
                f"{name} is a convolution",
                f"Linear layers, and of a UNet convolutions with a {LOW_RANK} without core and "
                "magnitude: Diffusers and PEFT read no other adapter of a convolution as it was "
                "trained",
                "Export with layout 'comfyui', or leave the layer out with adapter.exclude.",
            )
    for axis in ("input",) if FILE_RULES[state.kind].peft_dora else ("input", "output"):
        refuse_magnitude(
            outlines,
            axis,
            f"DoRA only with kind {LOW_RANK} and the output axis, the one that Diffusers and PEFT "
            "know",
            "Export with layout 'comfyui', or train with adapter.dora_axis: output and kind "
            f"{LOW_RANK}. {APPROXIMATE} --base PATH.",
        )
    return outlines


def _encode(kind: str, model: str, name: str, layer: LayerState) -> dict[str, Tensor]:
    factors = dict(layer.tensors)
    magnitude = factors.pop(DORA_SCALE, None)
    found = FILE_RULES[kind].diffusers(factors, layer_scale(kind, layer))
    if magnitude is not None:
        found[MAGNITUDE] = magnitude.flatten()
    prefix = "" if is_text_layer(name) else model
    return {f"{prefix}{name}.{ending}": each for ending, each in found.items()}


def _mixed_rank_header(outlines: Layers, prefix: str) -> dict[str, str]:
    """Tell Diffusers the ranks; before 0.40 it takes one alpha for all where they differ."""
    rules = FILE_RULES[LOW_RANK]
    ranks = {
        name: rules.alpha_rank(layer.tensors)
        for name, layer in outlines.items()
        if not is_text_layer(name)  # of which it takes the rank for alpha
    }
    if len(set(ranks.values())) < 2:
        return {}
    usual = Counter(ranks.values()).most_common(1)[0][0]
    pattern = {f"^{re.escape(name)}": rank for name, rank in ranks.items() if rank != usual}
    config = {
        "r": usual,
        rules.peft_alpha: usual,
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": sorted(ranks),
        "bias": "none",
    }
    prefixed = {f"{prefix}{key}": value for key, value in config.items()}
    return {HEADER_KEY: json.dumps(prefixed, indent=2, sort_keys=True)}


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
