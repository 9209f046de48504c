"""Names of Qwen-Image's layers, where Diffusers' are ComfyUI's own, and its single files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ...adapter_files.names.key_map import ComfyuiName
from ...weights.file_spec import FileSpec
from ...weights.header import WeightFile
from ..diffusers_parts import check_heads, layer_names
from ..published_sizes import PublishedSizes

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj")
_LAYERS = (
    *(f"transformer_blocks.{{}}.attn.{layer}" for layer in (*_ATTENTION, "to_add_out")),
    *(
        f"transformer_blocks.{{}}.{stream}_mlp.{layer}"
        for stream in ("img", "txt")
        for layer in ("net.0.proj", "net.2")
    ),
    *(f"transformer_blocks.{{}}.{stream}_mod.1" for stream in ("img", "txt")),
    "img_in",
    "txt_in",
    "time_text_embed.timestep_embedder.linear_1",
    "time_text_embed.timestep_embedder.linear_2",
    "norm_out.linear",
    "proj_out",
)
"""Every layer, with ``{}`` for the block's number."""

_SPELLINGS = ("{path}", "transformer.{path}", "lycoris_{flat}")
"""How ComfyUI 0.33 spells a layer besides its native name, in its order (comfy/lora.py)."""

_NORMS = ("attn.norm_q", "attn.norm_k", "attn.norm_added_q", "attn.norm_added_k")
_NORM_PATHS = (*(f"transformer_blocks.{{}}.{norm}" for norm in _NORMS), "txt_norm")
KEY_MAP = layer_names(
    {layer: layer for layer in _LAYERS},
    comfyui_spellings=_SPELLINGS,
    comfyui_names=tuple(ComfyuiName(norm, norm) for norm in _NORM_PATHS),
)
"""What ComfyUI calls weights: norms have names besides the layers.

Source: ComfyUI 0.33, ``comfy/lora.py`` (`model_lora_keys_unet`).
"""

_OWN = re.compile(r"transformer_blocks\.\d+\.(img|txt)_(mlp|mod)\.")
_SHARED = re.compile(r"transformer_blocks\.\d+\.attn\.(to_)?add_")
_OTHERS = re.compile(
    r"single_transformer_blocks\.|(double|single)_blocks\.|joint_transformer_blocks\."
    r"|transformer_blocks\.\d+\.(ff|ff_context|norm1|norm1_context|attn\.to_gate)\."
    r"|transformer_blocks\.\d+\.img_mlp\.(gate_layer|gate_up|proj|out)\."
)

_TIME = 256
"""Numbers that a time is spread to before it is embedded."""
_MLP_RATIO = 4
_PATCH = 4
"""Latent places of a patch, which lie one after another in what is predicted."""


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`LayerSpec.sizes`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    block = {
        "net.0.proj": (_MLP_RATIO * width, width),
        "net.2": (width, _MLP_RATIO * width),
        "mod.1": (6 * width, width),
    }
    sizes = {
        name: next((size for end, size in block.items() if name.endswith(end)), (width, width))
        for name in _LAYERS
    }
    sizes |= {
        "img_in": (width, config["in_channels"]),
        "txt_in": (width, config["joint_attention_dim"]),
        "time_text_embed.timestep_embedder.linear_1": (width, _TIME),
        "norm_out.linear": (2 * width, width),
        "proj_out": (_PATCH * config["out_channels"], width),
    }
    return PublishedSizes(sizes, {"transformer_blocks": config["num_layers"]}, width)


def detect(keys: Iterable[str]) -> bool:
    """`BaseFiles.detect`: a layer is there that no other known family has.

    An adapter that only has the attention of double blocks, with that of the text, could be another
    family's too; it counts as Qwen-Image.
    """
    names = list(keys)
    if any(_OTHERS.search(name) for name in names):
        return False
    return any(_OWN.search(name) or _SHARED.search(name) for name in names)


_ZERO_MARK = "__index_timestep_zero__"
_LAYERED = "time_text_embed.addition_t_embedding.weight"
_PLUS = re.compile(r"2509|2511|plus")


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`.

    Qwen-Image-Edit-2511 has the tensors of its forerunners, but was trained with control images
    modulated as if without noise. ComfyUI's files of it have a marker; files of others only say so
    in their names.
    """
    width, channels = file.matrix("img_in.weight")
    head = file.length("transformer_blocks.0.attn.norm_q.weight")
    found: dict[str, Any] = {
        "in_channels": channels,
        "out_channels": file.matrix("proj_out.weight")[0] // 4,
        "num_layers": file.count("transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head if head else 0,
        "joint_attention_dim": file.matrix("txt_in.weight")[1],
    }
    if _ZERO_MARK in file.tensors or "2511" in file.hints:
        found["zero_cond_t"] = True
    if _LAYERED in file.tensors:
        found |= {"use_additional_t_cond": True, "use_layer3d_rope": True}
    return found


def edit_variant(file: WeightFile) -> str:
    """`FileSpec.edit_variant`: several control images, unless only the first edit model fits."""
    if _LAYERED in file.tensors:
        return "layered"
    if _ZERO_MARK in file.tensors or _PLUS.search(file.hints):
        return "edit_plus"
    return "edit" if "edit" in file.hints else "edit_plus"


def edits(file: WeightFile) -> bool:
    """`FileSpec.edits`: by the name, the number of a release, or what only such a model has."""
    marked = (
        bool({_ZERO_MARK, _LAYERED} & set(file.tensors)) or _PLUS.search(file.hints) is not None
    )
    return marked or "edit" in file.hints


def restore(transformer: nn.Module) -> None:
    """`FileSpec.restore`: the rotary tables, which are not buffers."""
    empty: Any = transformer.pos_embed
    transformer.pos_embed = type(empty)(
        theta=empty.theta, axes_dim=empty.axes_dim, scale_rope=empty.scale_rope
    )


FILE = FileSpec(
    transformer="diffusers.QwenImageTransformer2DModel",
    configs=Path(__file__).parent / "configs",
    markers=frozenset({_ZERO_MARK}),
    settings=settings,
    edit_variant=edit_variant,
    edits=edits,
    restore=restore,
    check=check_heads,
)
