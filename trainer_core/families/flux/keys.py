"""Names of FLUX.1's layers, Diffusers' and ComfyUI's both ways, and its single files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...adapter_files.names.key_map import with_text_encoders
from ...adapter_files.names.text_encoder_names import KOHYA_PREFIXES, TEXT_ENCODER
from ...weights.file_spec import FileSpec
from ...weights.header import WeightFile
from ..diffusers_parts import check_heads, layer_names, names_in, origin_by_names
from ..flux_blocks import (
    DOUBLE,
    DOUBLE_MODULATION,
    NATIVE_MARKS,
    OTHER_NAMES,
    OUTER,
    SHARES,
    SINGLE,
    SINGLE_MODULATION,
    SPELLINGS,
    TIME,
    block_counts,
    block_sizes,
    file_sizes,
    has_joined_blocks,
    in_blocks,
    tidy,
)
from ..published_sizes import PublishedSizes
from .fill import MASK

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

_NAMES = {
    **in_blocks({**DOUBLE, **DOUBLE_MODULATION}, {**SINGLE, **SINGLE_MODULATION}),
    **OUTER,
    **TIME,
}

KEY_MAP = with_text_encoders(
    layer_names(_NAMES, SHARES, SPELLINGS, comfyui_names=OTHER_NAMES, aliases=_ALIASES),
    {TEXT_ENCODER: KOHYA_PREFIXES[TEXT_ENCODER]},  # its other one, T5, is never trained
)

_OWN = re.compile(
    r"single_transformer_blocks\.\d+\.(proj_mlp|proj_out|norm\.linear|attn\.to_[qkv])"
    r"|transformer_blocks\.\d+\.(ff|ff_context|norm1|norm1_context)\."
    r"|double_blocks\.\d+\.(img|txt)_(attn|mlp|mod)\.|single_blocks\.\d+\.(linear[12]|modulation)"
)
# Layers of Chroma, FLUX.2, HunyuanVideo, SD3 and Krea 2, which have blocks of the same names.
_OTHERS = re.compile(
    r"distilled_guidance_layer|double_stream_modulation|to_qkv_mlp_proj|individual_token_refiner"
    r"|token_refiner|joint_transformer_blocks|pos_embed\.proj|transformer_blocks\.\d+\.ff\.linear_"
    r"|text_fusion|transformer_blocks\.\d+\.(attn\.to_gate|ff\.(gate|up|down))\."
)

_TIME = 256
"""Numbers that a time is spread to before it is embedded."""

_MASK = 4 * MASK
"""Values of a mask for each patch of 2 x 2 latents."""


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`LayerSpec.sizes`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    patch, text = config["in_channels"], config["joint_attention_dim"]
    square, out = (width, width), config.get("out_channels") or patch
    time = "time_text_embed.{}_embedder.linear_{}"
    sizes = {
        **block_sizes(width),
        "transformer_blocks.{}.norm1.linear": (6 * width, width),
        "transformer_blocks.{}.norm1_context.linear": (6 * width, width),
        "single_transformer_blocks.{}.norm.linear": (3 * width, width),
        **{time.format(each, 1): (width, _TIME) for each in ("timestep", "guidance")},
        **{time.format(each, 2): square for each in ("timestep", "guidance", "text")},
        time.format("text", 1): (width, config["pooled_projection_dim"]),
        "x_embedder": (width, patch),
        "context_embedder": (width, text),
        "norm_out.linear": (2 * width, width),
        "proj_out": (out, width),
    }
    return PublishedSizes(sizes, block_counts(config), width)


def detect(keys: Iterable[str]) -> bool:
    """`BaseFiles.detect`: a layer is there that FLUX.1 has, and none of its relatives' own."""
    names = list(keys)
    if any(_OTHERS.search(name) for name in names) or has_joined_blocks(names):
        return False
    return any(_OWN.search(name) for name in names)


_ORIGIN = origin_by_names(KEY_MAP)


_GUIDANCE = "time_text_embed.guidance_embedder.linear_1.weight"


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`: dev and Kontext have the same tensors."""
    at = names_in(file, NATIVE_MARKS, _ORIGIN)
    found = file_sizes(file, at)
    channels, made = found["in_channels"], file.matrix(at("proj_out.weight"))[0]
    # FLUX.1 Fill reads latents of an image and a mask beside the noisy ones.
    if channels not in (made, 2 * made + _MASK):
        raise file.broken(
            f"it reads {channels} values for each patch and predicts {made}, as FLUX.1 Canny and "
            "Depth do",
            "FLUX.1 dev, Kontext or Fill",
            "Name a file of one of these as base.path.",
        )
    pooled = file.matrix(at("time_text_embed.text_embedder.linear_1.weight"))[1]
    # FLUX.1 schnell has no such layer.
    guided = at(_GUIDANCE) in file.tensors
    more = {"pooled_projection_dim": pooled, "guidance_embeds": guided}
    return {**found, **more, **({} if channels == made else {"out_channels": made})}


def fills(file: WeightFile) -> bool:
    """Whether a single file is FLUX.1 Fill."""
    return "out_channels" in settings(tidy(file))


FILE = FileSpec(
    transformer="diffusers.FluxTransformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=NATIVE_MARKS,
    tidy=tidy,
    origin=_ORIGIN,
    settings=settings,
    edits=lambda file: "kontext" in file.hints or fills(file),
    edit_variant=lambda file: "fill" if fills(file) else "edit",
    check=check_heads,
)
