"""Names of FLUX.1's layers, Diffusers' and ComfyUI's both ways, and its single files.

ComfyUI's model fuses what Diffusers keeps apart: q, k and v of a stream, and in single blocks q, k,
v and the first MLP layer. Such a layer is a slice there (`NativeKey.part`). A single file is in
ComfyUI's naming (that of Black Forest Labs) or in Diffusers'.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...adapter_files.names.key_map import ComfyuiName
from ...weights.file_spec import FileSpec
from ...weights.header import WeightFile
from ..diffusers_parts import check_heads, layer_names, origin_by_names
from ..family import PublishedSizes

_DOUBLE = {
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "attn.to_q": "img_attn.qkv",
    "attn.to_k": "img_attn.qkv",
    "attn.to_v": "img_attn.qkv",
    "attn.add_q_proj": "txt_attn.qkv",
    "attn.add_k_proj": "txt_attn.qkv",
    "attn.add_v_proj": "txt_attn.qkv",
}
_SINGLE = {
    "proj_out": "linear2",
    "norm.linear": "modulation.lin",
    "attn.to_q": "linear1",
    "attn.to_k": "linear1",
    "attn.to_v": "linear1",
    "proj_mlp": "linear1",
}
_OUTER = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "proj_out": "final_layer.linear",
}
_BLOCKS = (
    ("transformer_blocks.{}.", "double_blocks.{}."),
    ("single_transformer_blocks.{}.", "single_blocks.{}."),
)


def _in_blocks(double: Mapping[str, str], single: Mapping[str, str]) -> dict[str, str]:
    """Names inside the blocks of both kinds, as whole paths."""
    return {
        own + module: theirs + native
        for (own, theirs), names in zip(_BLOCKS, (double, single), strict=True)
        for module, native in names.items()
    }


_MLP_SHARE = 4
"""Rows of a single block's first MLP layer over those of q: the architecture's MLP ratio."""

_ALIASES = {
    **{
        f"double_blocks.{{}}.processor.{lora}": f"double_blocks.{{}}.{layer}"
        for lora, layer in {
            "qkv_lora1": "img_attn.qkv",
            "qkv_lora2": "txt_attn.qkv",
            "proj_lora1": "img_attn.proj",
            "proj_lora2": "txt_attn.proj",
        }.items()
    },
    "single_blocks.{}.processor.qkv_lora": "single_blocks.{}.linear1_qkv",
    "single_blocks.{}.processor.proj_lora": "single_blocks.{}.linear2",
}
"""Names of XLabs' trainer to ComfyUI's (Diffusers 0.42, ``lora_conversion_utils.py``; ComfyUI 0.33,
``comfy/lora_convert.py``)."""

_SPELLINGS = ("transformer.{path}", "lycoris_{flat}", "lora_transformer_{flat}", "{path}")
"""How ComfyUI 0.33 spells a layer besides its native name, in its order (comfy/lora.py)."""

_DOUBLE_OTHERS = {
    "attn.norm_q": "img_attn.norm.query_norm",
    "attn.norm_k": "img_attn.norm.key_norm",
    "attn.norm_added_q": "txt_attn.norm.query_norm",
    "attn.norm_added_k": "txt_attn.norm.key_norm",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
_SINGLE_OTHERS = {
    "attn.norm_q": "norm.query_norm",
    "attn.norm_k": "norm.key_norm",
    "attn.to_qkv_mlp_proj": "linear1",
    "attn.to_out": "linear2",
}
_QUERY_KEY_VALUE = 3

_OTHER_NAMES = (
    *(ComfyuiName(a, b) for a, b in _in_blocks(_DOUBLE_OTHERS, _SINGLE_OTHERS).items()),
    ComfyuiName("norm_out.linear", "final_layer.adaLN_modulation.1", swapped=True),
    ComfyuiName("controlnet_x_embedder", "pos_embed_input"),
    ComfyuiName(
        "single_blocks.{}.linear1_qkv",
        "single_blocks.{}.linear1",
        shares=_QUERY_KEY_VALUE,
        spellings=("diffusion_model.{path}",),
    ),
)
"""What ComfyUI calls layers besides what `KEY_MAP` says: norms, other spellings, one slice.

Some are of FLUX.2's spelling, which ComfyUI takes for FLUX.1 too.

Source: ComfyUI 0.33, ``comfy/utils.py`` (`flux_to_diffusers`) and ``comfy/lora.py``.
"""

UNEXPORTABLE = {
    r"norm_out\.linear": "ComfyUI keeps its scale and shift halves in the opposite order, so a new "
    "name alone would swap them",
}

KEY_MAP = layer_names(
    {**_in_blocks(_DOUBLE, _SINGLE), **_OUTER},
    {"single_transformer_blocks.{}.proj_mlp": _MLP_SHARE},
    _SPELLINGS,
    _OTHER_NAMES,
    _ALIASES,
)

_OWN = re.compile(
    r"single_transformer_blocks\.\d+\.(proj_mlp|proj_out|norm\.linear|attn\.to_[qkv])"
    r"|transformer_blocks\.\d+\.(ff|ff_context|norm1|norm1_context)\."
    r"|double_blocks\.\d+\.(img|txt)_(attn|mlp|mod)\.|single_blocks\.\d+\.(linear[12]|modulation)"
)
# Layers of Chroma, FLUX.2, HunyuanVideo and SD3, which have blocks of the same names.
_OTHERS = re.compile(
    r"distilled_guidance_layer|double_stream_modulation|to_qkv_mlp_proj|individual_token_refiner"
    r"|token_refiner|joint_transformer_blocks|pos_embed\.proj|transformer_blocks\.\d+\.ff\.linear_"
)

_TIME = 256
"""Numbers that a time is spread to before it is embedded."""

_FILL, _CONTROL = 384, 128
"""What FLUX.1 Fill, Canny and Depth read for each patch, besides what their base does."""


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`Family.sizes`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    patch, text = config["in_channels"], config["joint_attention_dim"]
    square, out = (width, width), config.get("out_channels") or patch
    wide, narrow = (_MLP_SHARE * width, width), (width, _MLP_SHARE * width)
    double = dict.fromkeys(_DOUBLE, square) | {
        "ff.net.0.proj": wide,
        "ff.net.2": narrow,
        "ff_context.net.0.proj": wide,
        "ff_context.net.2": narrow,
        "norm1.linear": (6 * width, width),
        "norm1_context.linear": (6 * width, width),
    }
    single = dict.fromkeys(_SINGLE, square) | {
        "proj_mlp": wide,
        "proj_out": (width, width + _MLP_SHARE * width),
        "norm.linear": (3 * width, width),
    }
    time = "time_text_embed.{}_embedder.linear_{}"
    sizes = {
        **{f"transformer_blocks.{{}}.{name}": (size,) for name, size in double.items()},
        **{f"single_transformer_blocks.{{}}.{name}": (size,) for name, size in single.items()},
        **{time.format(each, 1): ((width, _TIME),) for each in ("timestep", "guidance")},
        **{time.format(each, 2): (square,) for each in ("timestep", "guidance", "text")},
        time.format("text", 1): ((width, config["pooled_projection_dim"]),),
        "x_embedder": tuple((width, each) for each in (patch, _CONTROL, _FILL)),
        "context_embedder": ((width, text),),
        "norm_out.linear": ((2 * width, width),),
        "proj_out": ((out, width),),
    }
    layers, singles = config["num_layers"], config["num_single_layers"]
    blocks = {"transformer_blocks": layers, "single_transformer_blocks": singles}
    return PublishedSizes(
        sizes, {**blocks, "double_blocks": layers, "single_blocks": singles}, width
    )


def detect(keys: Iterable[str]) -> bool:
    """`Family.detect`: a layer is there that FLUX.1 has, and none of its relatives' own."""
    names = list(keys)
    if any(_OTHERS.search(name) for name in names):
        return False
    return any(_OWN.search(name) for name in names)


_NATIVE_MARKS = ("double_blocks.", "single_blocks.")
_ORIGIN = origin_by_names(KEY_MAP)


_GUIDANCE = "time_text_embed.guidance_embedder.linear_1.weight"


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`: dev and Kontext have the same tensors."""
    native = any(name.startswith(_NATIVE_MARKS) for name in file.tensors)

    def at(name: str) -> str:
        origin = _ORIGIN(name, native)
        return name if origin is None else origin.name

    width, channels = file.matrix(at("x_embedder.weight"))
    made = file.matrix(at("proj_out.weight"))[0]
    if channels != made:
        raise file.broken(
            f"it reads {channels} values for each patch and predicts {made}, as FLUX.1 Fill, Canny "
            "and Depth do",
            "FLUX.1 dev or Kontext",
            "Name a file of one of these as base.path.",
        )
    pooled = file.matrix(at("time_text_embed.text_embedder.linear_1.weight"))[1]
    head = file.length(at("transformer_blocks.0.attn.norm_q.weight"))
    double, single = (names[native].partition(".")[0] for names in _BLOCKS)
    return {
        "in_channels": channels,
        "num_layers": file.count(double),
        "num_single_layers": file.count(single),
        "attention_head_dim": head,
        "num_attention_heads": width // head if head else 0,
        "joint_attention_dim": file.matrix(at("context_embedder.weight"))[1],
        "pooled_projection_dim": pooled,
        # FLUX.1 schnell has no such layer.
        "guidance_embeds": at(_GUIDANCE) in file.tensors,
    }


def tidy(file: WeightFile) -> WeightFile:
    """`FileSpec.tidy`: norms were called ``scale`` before ComfyUI called them ``weight``."""
    tensors = {}
    for name, info in file.tensors.items():
        own = f"{name.removesuffix('.scale')}.weight" if name.endswith("_norm.scale") else name
        if own in tensors:
            raise file.broken(f"both {own} and {name} are there", "one of the two")
        tensors[own] = info
    return dataclasses.replace(file, tensors=tensors)


FILE = FileSpec(
    transformer="diffusers.FluxTransformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=_NATIVE_MARKS,
    tidy=tidy,
    origin=_ORIGIN,
    settings=settings,
    edits=lambda file: "kontext" in file.hints,
    check=check_heads,
)
