"""Names of FLUX.2's layers, Diffusers' and ComfyUI's both ways, and its single files.

The first layer of a single block, of q, k, v and the MLP, and its last are one in Diffusers too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...adapter_files.names.key_map import ComfyuiName
from ...weights.file_spec import FileSpec
from ...weights.header import WeightFile
from ..diffusers_parts import check_heads, layer_names, names_in, origin_by_names
from ..flux_blocks import (
    DOUBLE,
    DOUBLE_MODULATION,
    NATIVE_MARKS,
    NORMS,
    OUTER,
    SINGLE_MODULATION,
    SPELLINGS,
    TIME,
    block_counts,
    file_sizes,
    fused_attention,
    has_joined_blocks,
    in_blocks,
    tidy,
)
from ..published_sizes import PublishedSizes

_FEED = {
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
_ATTENTION = {name: native for name, native in DOUBLE.items() if name.startswith("attn.")}
_SINGLE = {"attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2"}
_SHARED = {
    **{
        f"{name}.linear": f"{name}.lin"
        for name in (
            "double_stream_modulation_img",
            "double_stream_modulation_txt",
            "single_stream_modulation",
        )
    },
    **{
        f"time_guidance_embed.{own}_embedder.linear_{number}": f"{theirs}_in.{layer}"
        for own, theirs in (("timestep", "time"), ("guidance", "guidance"))
        for number, layer in ((1, "in_layer"), (2, "out_layer"))
    },
}
"""Layers that all blocks share. ComfyUI has no Diffusers names for them."""

_MLP = 3
"""Hidden values of an MLP over the width; its first layer makes twice as many, for the gate."""
_LINEAR1 = 3 + 2 * _MLP
"""Widths of the rows of a single block's first layer: q, k, v and those of the MLP."""

_OLDER_FEED = {name: native for name, native in DOUBLE.items() if name not in _ATTENTION}
_DOUBLE_NAMES = {**NORMS["double"], **DOUBLE_MODULATION, **_OLDER_FEED, **_FEED}
_SINGLE_NAMES = {**NORMS["single"], **SINGLE_MODULATION, "proj_out": "linear2", **_SINGLE}
_SLICES = {"attn.to_q": (0, 1), "attn.to_k": (1, 1), "attn.to_v": (2, 1), "proj_mlp": (3, 4)}
_OTHER_NAMES = (
    *(ComfyuiName(a, b) for a, b in in_blocks(_DOUBLE_NAMES, _SINGLE_NAMES).items()),
    *(
        ComfyuiName(
            f"single_transformer_blocks.{{}}.{name}",
            "single_blocks.{}.linear1",
            shares=count,
            first=first,
            of=_LINEAR1,
        )
        for name, (first, count) in _SLICES.items()
    ),
    *(ComfyuiName(name, native) for name, native in TIME.items()),
    ComfyuiName("norm_out.linear", "final_layer.adaLN_modulation.1", swapped=True),
    ComfyuiName("controlnet_x_embedder", "pos_embed_input"),
    fused_attention(of=_LINEAR1),
)
"""What ComfyUI calls layers besides what `KEY_MAP` says, and where it has two names for one place.

It takes FLUX.1's names for FLUX.2 too: also where a layer is not there, and where a slice is no
whole part of the layer, as that of the MLP.
"""

_NAMES = {**in_blocks({**_ATTENTION, **_FEED}, _SINGLE), **OUTER, **_SHARED}
KEY_MAP = layer_names(
    _NAMES,
    comfyui_spellings=SPELLINGS,
    comfyui_names=_OTHER_NAMES,
    native_only=frozenset(_SHARED),
)

_OWN = re.compile(
    r"(double_stream_modulation_(img|txt)|single_stream_modulation|time_guidance_embed)\."
    r"|single_transformer_blocks\.\d+\.attn\.to_qkv_mlp_proj"
    r"|(?<!single_)transformer_blocks\.\d+\.ff_context\.linear_"
)

_TIME = 256
"""Numbers that a time is spread to before it is embedded."""


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`LayerSpec.sizes`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    channels = config["in_channels"]
    wide, narrow = (2 * _MLP * width, width), (width, _MLP * width)
    feed = {name: wide if name.endswith("_in") else narrow for name in _FEED}
    single = {
        "attn.to_qkv_mlp_proj": (_LINEAR1 * width, width),
        "attn.to_out": (width, width + _MLP * width),
    }
    blocks = {**dict.fromkeys(_ATTENTION, (width, width)), **feed}
    shared = dict.fromkeys(_SHARED, (width, width)) | {
        "double_stream_modulation_img.linear": (6 * width, width),
        "double_stream_modulation_txt.linear": (6 * width, width),
        "single_stream_modulation.linear": (3 * width, width),
        **{name: (width, _TIME) for name in _SHARED if name.endswith("linear_1")},
    }
    sizes = {
        **{f"transformer_blocks.{{}}.{name}": size for name, size in blocks.items()},
        **{f"single_transformer_blocks.{{}}.{name}": size for name, size in single.items()},
        **shared,
        "x_embedder": (width, channels),
        "context_embedder": (width, config["joint_attention_dim"]),
        "norm_out.linear": (2 * width, width),
        "proj_out": (channels, width),
    }
    return PublishedSizes(sizes, block_counts(config), width)


def detect(keys: Iterable[str]) -> bool:
    """`BaseFiles.detect`: a layer is there that FLUX.2 alone has."""
    names = list(keys)
    return any(_OWN.search(name) for name in names) or has_joined_blocks(names)


_ORIGIN = origin_by_names(KEY_MAP)


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`: sizes, and whether it is conditioned on guidance, as dev alone is."""
    at = names_in(file, NATIVE_MARKS, _ORIGIN)
    guidance = at("time_guidance_embed.guidance_embedder.linear_1.weight")
    return {**file_sizes(file, at), "guidance_embeds": guidance in file.tensors}


FILE = FileSpec(
    transformer="diffusers.Flux2Transformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=NATIVE_MARKS,
    tidy=tidy,
    origin=_ORIGIN,
    settings=settings,
    check=check_heads,
)
