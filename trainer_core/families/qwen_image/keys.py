"""Names of Qwen-Image's layers: Diffusers' are ComfyUI's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...adapter_files.names.key_map import BLOCK_NUMBER, ComfyuiName, NativeKey
from ..layer_sizes import PublishedSizes

_BLOCK_LAYER = (
    rf"transformer_blocks\.(?:{BLOCK_NUMBER})\.(attn\.(to_[qkv]|to_out\.0|add_[qkv]_proj|to_add_out)"
    r"|(img|txt)_mlp\.net\.(0\.proj|2)|(img|txt)_mod\.1)"
)
_OUTER = r"img_in|txt_in|time_text_embed\.timestep_embedder\.linear_[12]|norm_out\.linear|proj_out"
_LAYER = re.compile(f"{_BLOCK_LAYER}|{_OUTER}")
LAYERS = (
    *(
        f"transformer_blocks.{{}}.{layer}"
        for layer in (
            "attn.to_q",
            "attn.to_k",
            "attn.to_v",
            "attn.to_out.0",
            "attn.add_q_proj",
            "attn.add_k_proj",
            "attn.add_v_proj",
            "attn.to_add_out",
            "img_mlp.net.0.proj",
            "img_mlp.net.2",
            "txt_mlp.net.0.proj",
            "txt_mlp.net.2",
            "img_mod.1",
            "txt_mod.1",
        )
    ),
    "img_in",
    "txt_in",
    "time_text_embed.timestep_embedder.linear_1",
    "time_text_embed.timestep_embedder.linear_2",
    "norm_out.linear",
    "proj_out",
)
"""Every layer, with ``{}`` for the block's number."""

COMFYUI_SPELLINGS = ("{path}", "transformer.{path}", "lycoris_{flat}")
"""How ComfyUI 0.33 spells a layer besides its native name, in its order (comfy/lora.py)."""

_NORMS = (
    *(
        f"transformer_blocks.{{}}.attn.{norm}"
        for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k")
    ),
    "txt_norm",
)
COMFYUI_NAMES = tuple(ComfyuiName(path, path) for path in _NORMS)
"""What ComfyUI calls weights besides the layers: norms.

Source: ComfyUI 0.33, ``comfy/lora.py`` (`model_lora_keys_unet`).
"""

_OWN = re.compile(r"transformer_blocks\.\d+\.(img|txt)_(mlp|mod)\.")
_SHARED = re.compile(r"transformer_blocks\.\d+\.attn\.(to|add)_")
_OTHERS = re.compile(
    r"single_transformer_blocks\.|(double|single)_blocks\.|joint_transformer_blocks\."
    r"|transformer_blocks\.\d+\.(ff|ff_context|norm1|norm1_context)\."
)

_TIME = 256
"""Numbers that a time is spread to before it is embedded."""
_MLP_RATIO = 4
_PATCH = 4
"""Latent places of a patch, which lie one after another in what is predicted."""


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`Family.sizes`.

    Args:
        config: Of Diffusers' transformer.
    """
    width = config["num_attention_heads"] * config["attention_head_dim"]
    block = {
        "net.0.proj": (_MLP_RATIO * width, width),
        "net.2": (width, _MLP_RATIO * width),
        "mod.1": (6 * width, width),
    }
    sizes = {
        name: next((size for end, size in block.items() if name.endswith(end)), (width, width))
        for name in LAYERS
    }
    sizes |= {
        "img_in": (width, config["in_channels"]),
        "txt_in": (width, config["joint_attention_dim"]),
        "time_text_embed.timestep_embedder.linear_1": (width, _TIME),
        "norm_out.linear": (2 * width, width),
        "proj_out": (_PATCH * config["out_channels"], width),
    }
    counts = {"transformer_blocks": config["num_layers"]}
    return PublishedSizes({name: (size,) for name, size in sizes.items()}, counts, width)


def native_key(path: str) -> NativeKey | None:
    """ComfyUI's name of a layer.

    Args:
        path: Module path in Diffusers' transformer.

    Returns:
        The same name; None when the architecture has no such Linear.
    """
    return NativeKey(path, part=False) if _LAYER.fullmatch(path) else None


def module_path(native: str) -> str | None:
    """Undo `native_key`: the same name, or None when it is no layer of the architecture."""
    return native if _LAYER.fullmatch(native) else None


def detect(keys: Iterable[str]) -> bool:
    """Whether names of a base's weights or of an adapter file look like Qwen-Image.

    Args:
        keys: Tensor names, with any prefix.

    Returns:
        True when no other known family fits as well. An adapter that only has the attention of
        double blocks could be another family's too; it counts as Qwen-Image.
    """
    names = list(keys)
    if any(_OTHERS.search(name) for name in names):
        return False
    return any(_OWN.search(name) or _SHARED.search(name) for name in names)
