"""From an adapter's state to the tensors of a file, one function per layout."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..adapters import layer_scale
from ..adapters.convolution import CORES, as_matrices, filed_shape
from ..adapters.loha import khatri_rao
from ..adapters.magnitude import DORA_SCALE, axis_of
from ..errors import AdapterError
from ..types import AdapterState, LayerState
from .keys import DIFFUSERS_PREFIX, NATIVE_PREFIX, KeyMap


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a layout makes of an adapter.

    Attributes:
        tensors: Key to tensor, in the precision that the scale was applied in.
        header: Strings that the layout's loaders read from the file's header.
    """

    tensors: dict[str, Tensor]
    header: dict[str, str]


def reader_rank(tensors: Mapping[str, Tensor]) -> int | None:
    """The number by which readers divide a file's alpha.

    Returns:
        The rank as ComfyUI's and LyCORIS's readers find it in the shapes; None when nothing is
        low-rank and alpha is ignored.
    """
    for factor in ("lora_down", "hada_w1_b", "lokr_w2_b", "lokr_w1_b"):
        if factor in tensors:
            return tensors[factor].shape[0]
    return None


def encode_comfyui(state: AdapterState, key_map: KeyMap) -> Encoded:
    """ComfyUI's names, with one alpha per layer.

    A whole layer is written by its native name; a part of a fused layer by its Diffusers name,
    which ComfyUI maps to a slice. Of convolutions, LoRA's and LoHa's cores and LoKr's whole second
    factors get two axes for the window, whatever the layer has, and a LoKr's core is multiplied
    into its factor: ComfyUI reads no other forms.

    Raises:
        AdapterError: When a layer is unknown to the key map, or two get the same name.
    """
    _refuse_lengths(
        state,
        "output",
        "lengths of the input axis: ComfyUI up to 0.33 divides those of the output axis by the "
        "norm of the base's weight alone",
        "Train with adapter.dora_axis: input; kind lora can also be exported as 'diffusers'.",
    )
    tensors: dict[str, Tensor] = {}
    for name, layer in state.layers.items():
        native = key_map.to_native(name)
        if native is None:
            raise AdapterError(
                f"layer {name!r} has no native name in this family",
                "layers that the family's key map knows",
                "Use layout 'diffusers', or leave the layer out with adapter.exclude.",
            )
        prefix = DIFFUSERS_PREFIX + name if native.part else NATIVE_PREFIX + native.name
        if f"{prefix}.alpha" in tensors:
            raise AdapterError(
                f"two adapted layers are both written as {prefix!r}",
                "one name for each layer",
                "This is a fault of the family's key map; please report it.",
            )
        for factor, tensor in _readable(layer.tensors).items():
            suffix = f".{factor}.weight" if factor.startswith("lora_") else f".{factor}"
            tensors[prefix + suffix] = tensor
        rank = reader_rank(layer.tensors)
        alpha = layer.rank if rank is None else layer_scale(state.kind, layer) * rank
        tensors[f"{prefix}.alpha"] = torch.tensor(float(alpha), dtype=torch.float32)
    return Encoded(tensors, {})


def encode_diffusers(state: AdapterState, key_map: KeyMap) -> Encoded:
    """Diffusers' names, with the scale multiplied into a factor and no alpha.

    Diffusers has no LoHa; it is written as the LoRA of rank r^2 that equals it exactly.

    Raises:
        AdapterError: When Diffusers could not read the LoKr's factorisation, or a layer is a
            convolution.
    """
    del key_map
    _refuse_convolutions(state)
    for axis in ("input",) if state.kind == "lora" else ("input", "output"):
        _refuse_lengths(
            state,
            axis,
            "DoRA only with kind lora and the output axis, the one that Diffusers knows",
            "Export with layout 'comfyui', or train with adapter.dora_axis: output and kind lora.",
        )
    if state.kind == "lokr":
        _check_lokr(state)
        return Encoded(_baked(state, _baked_lokr), {})
    if state.kind == "loha":
        return Encoded(_baked(state, _baked_loha), {})
    return Encoded(_baked(state, _baked_lora), _mixed_rank_header(state))


LAYOUTS: dict[str, Callable[[AdapterState, KeyMap], Encoded]] = {
    "comfyui": encode_comfyui,
    "diffusers": encode_diffusers,
}


def _readable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Factors as ComfyUI's reader can use them; only those of convolutions change."""
    readable = dict(tensors)
    if "lokr_t2" in tensors:
        # ComfyUI 0.33 hands the product of core and factors to torch.kron, which refuses its
        # strides. The same LoKr without a core is read.
        matrices = as_matrices(tensors)
        del readable["lokr_t2"]
        readable |= {name: matrices[name].contiguous() for name in CORES["lokr_t2"]}
    for name in ("lokr_w2", "lora_mid", "hada_t1", "hada_t2"):
        if name in readable:
            readable[name] = readable[name].reshape(filed_shape(tuple(readable[name].shape)))
    return readable


def _refuse_convolutions(state: AdapterState) -> None:
    """Refuse what PEFT, Diffusers' reader, computes without the base's dilation and groups."""
    for name, layer in state.layers.items():
        if layer.kernel or any(tensor.dim() > 2 for tensor in layer.tensors.values()):
            raise AdapterError(
                f"{name} is a convolution",
                "Linear layers: Diffusers reads no adapter of a convolution as it was trained",
                "Export with layout 'comfyui', or leave the layer out with adapter.exclude.",
            )


def _refuse_lengths(state: AdapterState, axis: str, expected: str, remedy: str) -> None:
    """Refuse DoRA of an axis that a layout's readers do not compute as it was trained."""
    for name, layer in state.layers.items():
        lengths = layer.tensors.get(DORA_SCALE)
        if lengths is not None and axis_of(lengths) == axis:
            raise AdapterError(f"{name} has DoRA lengths of the {axis} axis", expected, remedy)


def _baked(
    state: AdapterState, bake: Callable[[LayerState, float], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    return {
        f"{DIFFUSERS_PREFIX}{name}.{factor}": tensor
        for name, layer in state.layers.items()
        for factor, tensor in bake(layer, layer_scale(state.kind, layer)).items()
    }


def _times(tensor: Tensor, scale: float) -> Tensor:
    if scale == 1.0:
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32)) * scale


def _baked_lora(layer: LayerState, scale: float) -> Mapping[str, Tensor]:
    up = _times(layer.tensors["lora_up"], scale)
    baked = {"lora_A.weight": layer.tensors["lora_down"], "lora_B.weight": up}
    if DORA_SCALE in layer.tensors:
        baked["lora_magnitude_vector"] = layer.tensors[DORA_SCALE].flatten()
    return baked


def _baked_loha(layer: LayerState, scale: float) -> Mapping[str, Tensor]:
    down, up = khatri_rao(layer.tensors)
    return {"lora_A.weight": down, "lora_B.weight": _times(up, scale)}


def _baked_lokr(layer: LayerState, scale: float) -> Mapping[str, Tensor]:
    first = "lokr_w1" if "lokr_w1" in layer.tensors else "lokr_w1_a"
    return {**layer.tensors, first: _times(layer.tensors[first], scale)}


def _mixed_rank_header(state: AdapterState) -> dict[str, str]:
    """Tell Diffusers the ranks; before 0.40 it takes one alpha for all where they differ."""
    ranks = {name: layer.tensors["lora_down"].shape[0] for name, layer in state.layers.items()}
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


def _check_lokr(state: AdapterState) -> None:
    """Diffusers rebuilds every layer's factorisation from one number; see whether one exists."""
    from peft.tuners.lokr.layer import factorization

    splits = {name: split_sizes(layer.tensors) for name, layer in state.layers.items()}
    candidates = [*sorted({out[0] for out, _ in splits.values()}), -1]
    for candidate in candidates:
        if all(
            factorization(sizes[0] * sizes[1], candidate) == sizes
            for pair in splits.values()
            for sizes in pair
        ):
            return
    raise AdapterError(
        f"the {len(splits)} layers of this LoKr are split in ways that Diffusers' reader, which "
        "knows one factor for all, cannot follow",
        "a factor that suits every adapted layer",
        "Export with layout 'comfyui', or train with adapter.factor = -1, or with kind 'lora'.",
    )


def split_sizes(tensors: Mapping[str, Tensor]) -> tuple[tuple[int, int], tuple[int, int]]:
    """How a LoKr's factors split the layer: (small, large) of the outputs and of the inputs."""

    def outer(name: str) -> tuple[int, int]:
        if name in tensors:
            return tensors[name].shape[0], tensors[name].shape[1]
        return tensors[f"{name}_a"].shape[0], tensors[f"{name}_b"].shape[1]

    (out_small, in_small), (out_large, in_large) = outer("lokr_w1"), outer("lokr_w2")
    return (out_small, out_large), (in_small, in_large)
