"""Names of Qwen-Image 2.1's layers, and its single files.

ComfyUI 0.33 does not have this model. The names that later ones have are those of Diffusers, but
that one layer fuses what opens and what goes through the gate of a feed-forward. Source: the
converter of Diffusers 0.42 for ComfyUI's files (``loaders/single_file_utils.py``). The two are
trained apart: Diffusers, the one program that has the model, keeps them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ...adapter_files.names.key_map import ComfyuiName
from ...weights.file_spec import FileSpec
from ...weights.header import WeightFile
from ..diffusers_parts import check_heads, layer_names, origin_by_names
from ..published_sizes import PublishedSizes

_FUSED = "img_mlp.gate_up"
_BLOCK = {
    **{f"attn.{layer}": f"attn.{layer}" for layer in ("to_q", "to_k", "to_v", "to_out.0")},
    "img_mlp.gate_layer": _FUSED,
    "img_mlp.proj": _FUSED,
    "img_mlp.out": "img_mlp.out",
}
_OUTER = (
    "img_in",
    "txt_in.in_layer",
    "txt_in.out_layer",
    "modulation.1",
    "time_text_embed.timestep_embedder.linear_1",
    "time_text_embed.timestep_embedder.linear_2",
    "norm_out.linear",
    "proj_out",
)
_NORMS = ("transformer_blocks.{}.attn.norm_q", "transformer_blocks.{}.attn.norm_k")

KEY_MAP = layer_names(
    {f"transformer_blocks.{{}}.{path}": f"transformer_blocks.{{}}.{name}"
     for path, name in _BLOCK.items()} | {path: path for path in _OUTER},
    # As ComfyUI 0.33 spells the layers of every other model that it has by Diffusers' names.
    comfyui_spellings=("diffusion_model.{path}", "transformer.{path}", "lycoris_{flat}", "{path}"),
    comfyui_names=tuple(ComfyuiName(path, path) for path in (*_NORMS, "txt_in.text_norm")),
)  # fmt: skip

_TIME = 256
"""Numbers that a time is spread to before it is embedded."""


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`LayerSpec.sizes`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    inner = config["mlp_ratio"] * width
    block = dict.fromkeys(_BLOCK, (width, width)) | {
        "img_mlp.gate_layer": (inner, width),
        "img_mlp.proj": (inner, width),
        "img_mlp.out": (width, inner),
    }
    outer = dict.fromkeys(_OUTER, (width, width)) | {
        "img_in": (width, config["in_channels"]),
        "txt_in.in_layer": (width, config["context_in_dim"]),
        "modulation.1": (4 * width, width),
        "time_text_embed.timestep_embedder.linear_1": (width, _TIME),
        "proj_out": (config["out_channels"], width),
    }
    layers = {f"transformer_blocks.{{}}.{path}": size for path, size in block.items()}
    return PublishedSizes(layers | outer, {"transformer_blocks": config["num_layers"]}, width)


_OWN = re.compile(
    r"transformer_blocks\.\d+\.img_mlp\.(gate_layer|gate_up|proj|out)\."
    r"|(?<!\w)(txt_in\.(in_layer|out_layer|text_norm)|modulation\.1)\."
)
_ATTENTION = re.compile(r"(?<!\w)transformer_blocks\.\d+\.attn\.to_(q|k|v|out\.0)\.")
_OTHERS = re.compile(
    r"\.(add_[qkv]_proj|to_add_out|(img|txt)_mod|txt_mlp|img_mlp\.net|ff|ff_context)\."
    r"|\.norm1(_context)?\."
    r"|single_transformer_blocks\.|(double|single)_blocks\.|joint_transformer_blocks\."
)


def detect(keys: Iterable[str]) -> bool:
    """`BaseFiles.detect`: a layer that only this model has, or nothing but its attention."""
    names = list(keys)
    if any(_OTHERS.search(name) for name in names):
        return False
    return any(_OWN.search(name) for name in names) or (
        bool(names) and all(_ATTENTION.search(name) for name in names)
    )


_ORIGIN = origin_by_names(KEY_MAP)


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`: base and Turbo have the same tensors."""
    width, channels = file.matrix("img_in.weight")
    head = file.length("transformer_blocks.0.attn.norm_q.weight")
    columns = file.matrix("transformer_blocks.0.img_mlp.out.weight")[1]
    return {
        "in_channels": channels,
        "out_channels": file.matrix("proj_out.weight")[0],
        "num_layers": file.count("transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": width // head if head else 0,
        "context_in_dim": file.matrix("txt_in.in_layer.weight")[1],
        "mlp_ratio": columns // width if width else 0,
    }


def restore(transformer: nn.Module) -> None:
    """`FileSpec.restore`: tables of positions and times, which no file holds."""
    rope: Any = transformer.get_submodule("pos_embed")
    transformer.pos_embed = type(rope)(theta=rope.theta, axes_dim=rope.axes_dim)
    embedder: Any = transformer.get_submodule("time_text_embed")
    time = embedder.time_proj
    embedder.time_proj = type(time)(time.timestep_dim, time_factor=time.time_factor)


FILE = FileSpec(
    transformer="diffusers.QwenImage21Transformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=(f"transformer_blocks.0.{_FUSED}.",),
    settings=settings,
    origin=_ORIGIN,
    edit_variant=lambda file: "edit_plus",
    edits=lambda file: False,
    restore=restore,
    check=check_heads,
)
