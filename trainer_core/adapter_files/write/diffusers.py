"""Layout ``diffusers``: the scale multiplied into a factor, and no alpha."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping

from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kinds.loha import khatri_rao
from ...adapters.kinds.registry import layer_scale
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.fuse import split_sizes
from ..factors.outlines import Layers, outlines_of
from ..factors.whole_layers import refuse_undivided
from ..names.key_map import DIFFUSERS_PREFIX, KeyMap
from .write_plan import Options, Plan, piece_of, refuse_extras, refuse_lengths, times

Bake = Callable[[LayerState, float], Mapping[str, Tensor]]

KEEP_WHOLE = "Choose layout 'comfyui' or 'kohya', which hold the layer as it is."
APPROXIMATE = "Or convert it as a lora on request: --approximate lora --rank N"


def plan_diffusers(state: AdapterState, key_map: KeyMap, options: Options) -> Plan:
    """Diffusers' names, with the scale multiplied into a factor and no alpha.

    Diffusers has no LoHa; it is written as the LoRA of rank r^2 that equals it exactly.

    Raises:
        AdapterError: When Diffusers could not read the LoKr's factorisation, or a layer is a
            convolution.
    """
    del options
    refuse_extras(state, "diffusers")
    refuse_undivided(state, key_map, "layout 'diffusers'", KEEP_WHOLE)
    outlines = outlines_of(state)
    refuse_convolutions(outlines)
    refuse_unread_lengths(outlines, state.kind)
    if state.kind == "lokr":
        _check_lokr(outlines)
    header = _mixed_rank_header(outlines) if state.kind == "lora" else {}
    bake = _BAKERS[state.kind]
    return Plan(
        tuple(
            piece_of(state, name, [name], lambda layers: _baked(state.kind, layers, bake))
            for name in state.layers
        ),
        header,
    )


def refuse_convolutions(outlines: Layers) -> None:
    """Refuse what PEFT, Diffusers' reader, computes without the base's dilation and groups.

    Raises:
        AdapterError: When a layer is a convolution.
    """
    for name, layer in outlines.items():
        if layer.kernel or any(tensor.dim() > 2 for tensor in layer.tensors.values()):
            raise AdapterError(
                f"{name} is a convolution",
                "Linear layers: Diffusers and PEFT read no adapter of a convolution as it was "
                "trained",
                "Export with layout 'comfyui', or leave the layer out with adapter.exclude.",
            )


def refuse_unread_lengths(outlines: Layers, kind: str) -> None:
    """Refuse DoRA that PEFT, which Diffusers reads with too, does not have.

    Raises:
        AdapterError: When a layer has such lengths.
    """
    for axis in ("input",) if kind == "lora" else ("input", "output"):
        refuse_lengths(
            outlines,
            axis,
            "DoRA only with kind lora and the output axis, the one that Diffusers and PEFT know",
            "Export with layout 'comfyui', or train with adapter.dora_axis: output and kind lora. "
            f"{APPROXIMATE} --base PATH.",
        )


def _baked(kind: str, layers: Layers, bake: Bake) -> dict[str, Tensor]:
    return {
        f"{DIFFUSERS_PREFIX}{name}.{factor}": tensor
        for name, layer in layers.items()
        for factor, tensor in bake(layer, layer_scale(kind, layer)).items()
    }


def _baked_lora(layer: LayerState, scale: float) -> Mapping[str, Tensor]:
    up = times(layer.tensors["lora_up"], scale)
    baked = {"lora_A.weight": layer.tensors["lora_down"], "lora_B.weight": up}
    if DORA_SCALE in layer.tensors:
        baked["lora_magnitude_vector"] = layer.tensors[DORA_SCALE].flatten()
    return baked


def _baked_loha(layer: LayerState, scale: float) -> Mapping[str, Tensor]:
    down, up = khatri_rao(layer.tensors)
    return {"lora_A.weight": down, "lora_B.weight": times(up, scale)}


def _baked_lokr(layer: LayerState, scale: float) -> Mapping[str, Tensor]:
    first = "lokr_w1" if "lokr_w1" in layer.tensors else "lokr_w1_a"
    return {**layer.tensors, first: times(layer.tensors[first], scale)}


_BAKERS: Mapping[str, Bake] = {"lora": _baked_lora, "loha": _baked_loha, "lokr": _baked_lokr}


def _mixed_rank_header(outlines: Layers) -> dict[str, str]:
    """Tell Diffusers the ranks; before 0.40 it takes one alpha for all where they differ."""
    ranks = {name: layer.tensors["lora_down"].shape[0] for name, layer in outlines.items()}
    if len(set(ranks.values())) < 2:
        return {}
    usual = Counter(ranks.values()).most_common(1)[0][0]
    pattern = {f"^{re.escape(name)}": rank for name, rank in ranks.items() if rank != usual}
    config = {
        "r": usual,
        "lora_alpha": usual,
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": sorted(ranks),
        "bias": "none",
    }
    prefixed = {f"{DIFFUSERS_PREFIX}{key}": value for key, value in config.items()}
    return {"lora_adapter_metadata": json.dumps(prefixed, indent=2, sort_keys=True)}


def _check_lokr(outlines: Layers) -> None:
    """Diffusers rebuilds every layer's factorisation from one number; see whether one exists."""
    if peft_factor(outlines) is None:
        raise AdapterError(
            f"the {len(outlines)} layers of this LoKr are split in ways that Diffusers' reader, "
            "which knows one factor for all, cannot follow",
            "a factor that suits every adapted layer",
            "Export with layout 'comfyui', or train with adapter.factor = -1, or with kind 'lora'. "
            f"{APPROXIMATE}.",
        )


def peft_factor(outlines: Layers) -> int | None:
    """The one number by which PEFT splits every layer of a LoKr as it is split.

    Args:
        outlines: The layers.

    Returns:
        PEFT's ``decompose_factor``; None where there is no such number.
    """
    from peft.tuners.lokr.layer import factorization

    splits = {name: split_sizes(layer.tensors) for name, layer in outlines.items()}
    candidates = [-1, *sorted({out[0] for out, _ in splits.values()})]
    for candidate in candidates:
        if all(
            factorization(sizes[0] * sizes[1], candidate) == sizes
            for pair in splits.values()
            for sizes in pair
        ):
            return candidate
    return None
