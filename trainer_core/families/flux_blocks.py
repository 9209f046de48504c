"""Blocks with the names of FLUX.1's, which several families have, and the places of their tokens.

ComfyUI's model fuses what Diffusers keeps apart: q, k and v of a stream, and in single blocks q, k,
v and the first MLP layer. Such a layer is a slice there (`NativeKey.part`). A single file is in
ComfyUI's naming (that of Black Forest Labs) or in Diffusers'.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..adapter_files.names.key_map import ComfyuiName
from ..weights.header import WeightFile
from .family_specs import RoutedBlocks
from .published_sizes import Size

BLOCKS = (
    ("transformer_blocks.{}.", "double_blocks.{}."),
    ("single_transformer_blocks.{}.", "single_blocks.{}."),
)
"""Diffusers' and ComfyUI's names of the blocks with two streams, and of those with one."""

REPEATED_BLOCKS = tuple(names[0].partition(".")[0] for names in BLOCKS)
"""`LayerSpec.repeated_blocks`."""

ROUTED = RoutedBlocks(REPEATED_BLOCKS, axes={"image_rotary_emb": (0, 0)})
"""`LayerSpec.routed`."""

DOUBLE = {
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
    "attn.to_q": "img_attn.qkv",
    "attn.to_k": "img_attn.qkv",
    "attn.to_v": "img_attn.qkv",
    "attn.add_q_proj": "txt_attn.qkv",
    "attn.add_k_proj": "txt_attn.qkv",
    "attn.add_v_proj": "txt_attn.qkv",
}
SINGLE = {
    "proj_out": "linear2",
    "attn.to_q": "linear1",
    "attn.to_k": "linear1",
    "attn.to_v": "linear1",
    "proj_mlp": "linear1",
}
DOUBLE_MODULATION = {"norm1.linear": "img_mod.lin", "norm1_context.linear": "txt_mod.lin"}
SINGLE_MODULATION = {"norm.linear": "modulation.lin"}
OUTER = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "proj_out": "final_layer.linear",
}
TIME = {
    f"time_text_embed.{own}_embedder.linear_{number}": f"{theirs}_in.{layer}"
    for own, theirs in (("timestep", "time"), ("text", "vector"), ("guidance", "guidance"))
    for number, layer in ((1, "in_layer"), (2, "out_layer"))
}

MLP_SHARE = 4
"""Rows of a single block's first MLP layer over those of q: the architecture's MLP ratio."""

SHARES = {"single_transformer_blocks.{}.proj_mlp": MLP_SHARE}
"""As `layer_names` takes them."""

SPELLINGS = ("transformer.{path}", "lycoris_{flat}", "lora_transformer_{flat}", "{path}")
"""How ComfyUI 0.33 spells a layer besides its native name, in its order (comfy/lora.py)."""

NORMS = {
    "double": {
        "attn.norm_q": "img_attn.norm.query_norm",
        "attn.norm_k": "img_attn.norm.key_norm",
        "attn.norm_added_q": "txt_attn.norm.query_norm",
        "attn.norm_added_k": "txt_attn.norm.key_norm",
    },
    "single": {"attn.norm_q": "norm.query_norm", "attn.norm_k": "norm.key_norm"},
}
_DOUBLE_OTHERS = {
    **NORMS["double"],
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
_SINGLE_OTHERS = {
    **NORMS["single"],
    "attn.to_qkv_mlp_proj": "linear1",
    "attn.to_out": "linear2",
}
_QUERY_KEY_VALUE = 3


def in_blocks(double: Mapping[str, str], single: Mapping[str, str]) -> dict[str, str]:
    """Names inside the blocks of both kinds, as whole paths."""
    return {
        own + module: theirs + native
        for (own, theirs), names in zip(BLOCKS, (double, single), strict=True)
        for module, native in names.items()
    }


def fused_attention(of: int = 0) -> ComfyuiName:
    """ComfyUI's name of q, k and v in a single block's first layer (``of`` as there)."""
    return ComfyuiName(
        "single_blocks.{}.linear1_qkv",
        "single_blocks.{}.linear1",
        shares=_QUERY_KEY_VALUE,
        of=of,
        spellings=("diffusion_model.{path}",),
    )


OTHER_NAMES = (
    *(ComfyuiName(a, b) for a, b in in_blocks(_DOUBLE_OTHERS, _SINGLE_OTHERS).items()),
    ComfyuiName("norm_out.linear", "final_layer.adaLN_modulation.1", swapped=True),
    ComfyuiName("controlnet_x_embedder", "pos_embed_input"),
    fused_attention(),
)
"""What ComfyUI calls layers besides those of the tables: norms, other spellings, one slice.

Some are of FLUX.2's spelling, which ComfyUI takes for all of these families.

Source: ComfyUI 0.33, ``comfy/utils.py`` (`flux_to_diffusers`) and ``comfy/lora.py``.
"""

UNEXPORTABLE = {
    r"norm_out\.linear": "ComfyUI keeps its scale and shift halves in the opposite order, so a new "
    "name alone would swap them",
}
"""`LayerSpec.unexportable`."""

_WHOLE_SINGLE = re.compile(r"single_blocks\.\d+\.linear1(?!_qkv)")
_PARTED_DOUBLE = re.compile(r"(?<!single_)transformer_blocks\.\d+\.attn\.(to_[qkv]|add_)")


def has_joined_blocks(names: Iterable[str]) -> bool:
    """Whether an adapter in ComfyUI's layout is for single blocks with one first layer.

    That of FLUX.1 is written in parts, as q, k and v of double blocks are in any family.
    """
    names = list(names)
    return all(any(map(mark.search, names)) for mark in (_WHOLE_SINGLE, _PARTED_DOUBLE))


NATIVE_MARKS = ("double_blocks.", "single_blocks.")
"""`FileSpec.native_marks`."""

ATTENTION = (
    r"transformer_blocks\.\d+\.attn\.(to_[qkv]|to_out\.0|add_[qkv]_proj|to_add_out)",
    r"single_transformer_blocks\.\d+\.attn\.to_[qkv]",
)
MLP = (
    r"transformer_blocks\.\d+\.(ff|ff_context)\.net\.(0\.proj|2)",
    # The output of a single block joins attention and MLP in one layer.
    r"single_transformer_blocks\.\d+\.(proj_mlp|proj_out)",
)
"""Regular expressions of layers, for `LayerSpec.presets`."""

SHARED_INPUTS = (
    r"(transformer_blocks\.\d+)\.attn\.to_[qkv]",
    r"(transformer_blocks\.\d+)\.attn\.add_[qkv]_proj",
    r"(single_transformer_blocks\.\d+)\.(?:proj_mlp|attn\.to_[qkv])",
)
"""`LayerSpec.shared_inputs`."""


def block_sizes(width: int) -> dict[str, Size]:
    """Layers of the blocks, without modulation, to their sizes (`PublishedSizes.layers`)."""
    square, wide, narrow = (width, width), (MLP_SHARE * width, width), (width, MLP_SHARE * width)
    double = dict.fromkeys(DOUBLE, square) | {
        "ff.net.0.proj": wide,
        "ff.net.2": narrow,
        "ff_context.net.0.proj": wide,
        "ff_context.net.2": narrow,
    }
    single = dict.fromkeys(SINGLE, square) | {
        "proj_mlp": wide,
        "proj_out": (width, width + MLP_SHARE * width),
    }
    own = (names[0] for names in BLOCKS)
    parts = zip(own, (double, single), strict=True)
    return {block + name: size for block, sizes in parts for name, size in sizes.items()}


def block_counts(config: Mapping[str, Any]) -> dict[str, int]:
    """`PublishedSizes.blocks`."""
    counts = zip(BLOCKS, (config["num_layers"], config["num_single_layers"]), strict=True)
    return {name.partition(".")[0]: count for names, count in counts for name in names}


def file_sizes(file: WeightFile, name: Callable[[str], str]) -> dict[str, Any]:
    """What a single file says of the settings of Diffusers' class, and what all have in common.

    `name` is a tensor's name in Diffusers' transformer to that in the file.
    """
    native = any(tensor.startswith(NATIVE_MARKS) for tensor in file.tensors)
    width, channels = file.matrix(name("x_embedder.weight"))
    head = file.length(name("transformer_blocks.0.attn.norm_q.weight"))
    double, single = (names[native].partition(".")[0] for names in BLOCKS)
    return {
        "in_channels": channels,
        "num_layers": file.count(double),
        "num_single_layers": file.count(single),
        "attention_head_dim": head,
        "num_attention_heads": width // head if head else 0,
        "joint_attention_dim": file.matrix(name("context_embedder.weight"))[1],
    }


def tidy(file: WeightFile) -> WeightFile:
    """`FileSpec.tidy`: norms were called ``scale`` before ComfyUI called them ``weight``."""
    tensors = {}
    for name, info in file.tensors.items():
        norm = name.endswith("_norm.scale") or (".norms." in name and name.endswith(".scale"))
        own = f"{name.removesuffix('.scale')}.weight" if norm else name
        if own in tensors:
            raise file.broken(f"both {own} and {name} are there", "one of the two")
        tensors[own] = info
    return dataclasses.replace(file, tensors=tensors)


def positions(latents: Tensor, index: int) -> Tensor:
    """Places of the tokens of latents `[B, C, h, w]`, `[T, 3]`: the image's index, row and column.

    The index is 0 for the target, 1 for the first control image.
    """
    rows, columns = latents.shape[-2] // 2, latents.shape[-1] // 2
    # In float32, because bfloat16 cannot count beyond 256.
    device = latents.device
    axes = [torch.arange(count, device=device) for count in (1, rows, columns)]
    return torch.cartesian_prod(axes[0] + index, *axes[1:]).float()
