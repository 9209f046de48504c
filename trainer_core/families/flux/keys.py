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

from torch import nn

from ...adapter_files.names.key_map import BLOCK_NUMBER, ComfyuiName, NativeKey, Part
from ...weights.file_spec import FileSpec, Origin
from ...weights.header import WeightFile
from ..family import PublishedSizes, check_heads

_DOUBLE = {
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
}
_DOUBLE_PARTS = {
    "attn.to_q": "img_attn.qkv",
    "attn.to_k": "img_attn.qkv",
    "attn.to_v": "img_attn.qkv",
    "attn.add_q_proj": "txt_attn.qkv",
    "attn.add_k_proj": "txt_attn.qkv",
    "attn.add_v_proj": "txt_attn.qkv",
}
_SINGLE = {"proj_out": "linear2", "norm.linear": "modulation.lin"}
_SINGLE_PARTS = {
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
LAYERS = (
    *(f"transformer_blocks.{{}}.{layer}" for layer in (*_DOUBLE, *_DOUBLE_PARTS)),
    *(f"single_transformer_blocks.{{}}.{layer}" for layer in (*_SINGLE, *_SINGLE_PARTS)),
    *_OUTER,
)
"""Every layer that has a native name, with ``{}`` for the block's number."""

ALIASES = {
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

COMFYUI_SPELLINGS = ("transformer.{path}", "lycoris_{flat}", "lora_transformer_{flat}", "{path}")
"""How ComfyUI 0.33 spells a layer besides its native name, in its order (comfy/lora.py)."""

DOUBLE_NAMES = {
    "attn.norm_q": "img_attn.norm.query_norm",
    "attn.norm_k": "img_attn.norm.key_norm",
    "attn.norm_added_q": "txt_attn.norm.query_norm",
    "attn.norm_added_k": "txt_attn.norm.key_norm",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
SINGLE_NAMES = {
    "attn.norm_q": "norm.query_norm",
    "attn.norm_k": "norm.key_norm",
    "attn.to_qkv_mlp_proj": "linear1",
    "attn.to_out": "linear2",
}
_QUERY_KEY_VALUE = 3

COMFYUI_NAMES = (
    *(
        ComfyuiName(f"transformer_blocks.{{}}.{a}", f"double_blocks.{{}}.{b}")
        for a, b in DOUBLE_NAMES.items()
    ),
    *(
        ComfyuiName(f"single_transformer_blocks.{{}}.{a}", f"single_blocks.{{}}.{b}")
        for a, b in SINGLE_NAMES.items()
    ),
    ComfyuiName("norm_out.linear", "final_layer.adaLN_modulation.1", swapped=True),
    ComfyuiName("controlnet_x_embedder", "pos_embed_input"),
    ComfyuiName(
        "single_blocks.{}.linear1_qkv",
        "single_blocks.{}.linear1",
        shares=_QUERY_KEY_VALUE,
        spellings=("diffusion_model.{path}",),
    ),
)
"""What ComfyUI calls layers besides what `native_key` says: norms, other spellings, one slice.

Some are of FLUX.2's spelling, which ComfyUI takes for FLUX.1 too.

Source: ComfyUI 0.33, ``comfy/utils.py`` (`flux_to_diffusers`) and ``comfy/lora.py``.
"""

_MLP_SHARE = 4
"""Rows of a single block's first MLP layer over those of q: the architecture's MLP ratio."""

UNEXPORTABLE = {
    r"norm_out\.linear": "ComfyUI keeps its scale and shift halves in the opposite order, so a new "
    "name alone would swap them",
}

_MODULE = re.compile(rf"(single_transformer_blocks|transformer_blocks)\.({BLOCK_NUMBER})\.(.+)")
_NATIVE = re.compile(rf"(single_blocks|double_blocks)\.({BLOCK_NUMBER})\.(.+)")
_NATIVE_DOUBLE = {native: module for module, native in _DOUBLE.items()}
_NATIVE_SINGLE = {native: module for module, native in _SINGLE.items()}
_NATIVE_OUTER = {native: module for module, native in _OUTER.items()}

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
    """`Family.sizes`.

    Args:
        config: Of Diffusers' transformer.
    """
    width = config["num_attention_heads"] * config["attention_head_dim"]
    patch, text = config["in_channels"], config["joint_attention_dim"]
    square, out = (width, width), config.get("out_channels") or patch
    wide, narrow = (_MLP_SHARE * width, width), (width, _MLP_SHARE * width)
    double = dict.fromkeys((*_DOUBLE, *_DOUBLE_PARTS), square) | {
        "ff.net.0.proj": wide,
        "ff.net.2": narrow,
        "ff_context.net.0.proj": wide,
        "ff_context.net.2": narrow,
        "norm1.linear": (6 * width, width),
        "norm1_context.linear": (6 * width, width),
    }
    single = dict.fromkeys(_SINGLE_PARTS, square) | {
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


def native_key(path: str) -> NativeKey | None:
    """ComfyUI's name of a layer.

    Args:
        path: Module path in Diffusers' transformer.

    Returns:
        Its name, or that of the fused layer that it is a part of; None when the architecture has
        no such Linear, or when renaming cannot express it (`UNEXPORTABLE`).
    """
    block = _MODULE.fullmatch(path)
    if block is None:
        return NativeKey(_OUTER[path], part=False) if path in _OUTER else None
    kind, index, layer = block.groups()
    if kind == "transformer_blocks":
        prefix, whole, parts = f"double_blocks.{index}", _DOUBLE, _DOUBLE_PARTS
    else:
        prefix, whole, parts = f"single_blocks.{index}", _SINGLE, _SINGLE_PARTS
    if layer in whole:
        return NativeKey(f"{prefix}.{whole[layer]}", part=False)
    return NativeKey(f"{prefix}.{parts[layer]}", part=True) if layer in parts else None


def module_path(native: str) -> str | None:
    """Undo `native_key` for whole layers.

    Args:
        native: ComfyUI's name of a layer.

    Returns:
        The module path; None for a fused layer, which is several modules here, and for names that
        are no layer of the architecture.
    """
    block = _NATIVE.fullmatch(native)
    if block is None:
        return _NATIVE_OUTER.get(native)
    kind, index, layer = block.groups()
    if kind == "double_blocks":
        prefix, layers = f"transformer_blocks.{index}", _NATIVE_DOUBLE
    else:
        prefix, layers = f"single_transformer_blocks.{index}", _NATIVE_SINGLE
    return f"{prefix}.{layers[layer]}" if layer in layers else None


def fused_parts(native: str) -> tuple[Part, ...]:
    """What lies in the rows of one of ComfyUI's fused layers, in order.

    Args:
        native: ComfyUI's name of a layer.

    Returns:
        The parts; empty when the name is no fused layer.
    """
    block = _NATIVE.fullmatch(native)
    if block is None:
        return ()
    kind, index, layer = block.groups()
    if kind == "double_blocks":
        prefix, parts = f"transformer_blocks.{index}", _DOUBLE_PARTS
    else:
        prefix, parts = f"single_transformer_blocks.{index}", _SINGLE_PARTS
    return tuple(
        Part(f"{prefix}.{path}", _MLP_SHARE if path == "proj_mlp" else 1)
        for path, fused in parts.items()
        if fused == layer
    )


def detect(keys: Iterable[str]) -> bool:
    """Whether names of a base's weights or of an adapter file look like FLUX.1.

    Args:
        keys: Tensor names in Diffusers' or ComfyUI's naming, with any prefix.

    Returns:
        True when a layer is there that FLUX.1 has, and none of its relatives' own.
    """
    names = list(keys)
    if any(_OTHERS.search(name) for name in names):
        return False
    return any(_OWN.search(name) for name in names)


_NATIVE_MARKS = ("double_blocks.", "single_blocks.")
_NORMS = {"transformer_blocks": DOUBLE_NAMES, "single_transformer_blocks": SINGLE_NAMES}
_BLOCKS = {"transformer_blocks": "double_blocks", "single_transformer_blocks": "single_blocks"}
_NORM = re.compile(r"(single_transformer_blocks|transformer_blocks)\.(\d+)\.(attn\.norm_\w+)")
# The parts of a fused layer, in the order in which they lie in it.
_PARTS = (
    ("attn.to_q", "attn.add_q_proj"),
    ("attn.to_k", "attn.add_k_proj"),
    ("attn.to_v", "attn.add_v_proj"),
    ("proj_mlp",),
)


def origin(name: str, native: bool) -> Origin:
    """`FileSpec.origin`.

    Args:
        name: Tensor name in Diffusers' transformer, such as ``x_embedder.weight``.
        native: Whether the file has ComfyUI's naming.

    Returns:
        Its place in the file.
    """
    if not native:
        return Origin(name)
    path, _, kind = name.rpartition(".")
    if path == "norm_out.linear":
        # Diffusers has the scale before the shift.
        return Origin(f"final_layer.adaLN_modulation.1.{kind}", swapped=True)
    norm = _NORM.fullmatch(path)
    if norm is not None:
        blocks, index, layer = norm.groups()
        return Origin(f"{_BLOCKS[blocks]}.{index}.{_NORMS[blocks][layer]}.{kind}")
    key = native_key(path)
    if key is None:
        raise ValueError(f"{name} is no tensor of FLUX.1")
    if not key.part:
        return Origin(f"{key.name}.{kind}")
    part = next(place for place, ends in enumerate(_PARTS) if path.endswith(ends))
    return Origin(f"{key.name}.{kind}", part)


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`: dev and Kontext have the same tensors."""
    native = any(name.startswith(_NATIVE_MARKS) for name in file.tensors)

    def at(name: str) -> str:
        return origin(name, native).name

    width, channels = file.matrix(at("x_embedder.weight"))
    made = file.matrix(at("proj_out.weight"))[0]
    if channels != made:
        raise file.broken(
            f"it reads {channels} values for each patch and predicts {made}, as FLUX.1 Fill, Canny "
            "and Depth do",
            "FLUX.1 dev or Kontext",
            "Name a file of one of these as base.path.",
        )
    if at("time_text_embed.guidance_embedder.linear_1.weight") not in file.tensors:
        raise file.broken(
            "it has no layer for guidance, as FLUX.1 schnell, which is distilled to few steps",
            "FLUX.1 dev or Kontext",
            "Train on the file of dev; most of its adapters work on schnell too. A model without "
            "guidance that was not distilled can be trained from a Diffusers folder.",
        )
    head = file.length(at("transformer_blocks.0.attn.norm_q.weight"))
    double, single = _BLOCKS.values() if native else _BLOCKS.keys()
    return {
        "in_channels": channels,
        "num_layers": file.count(double),
        "num_single_layers": file.count(single),
        "attention_head_dim": head,
        "num_attention_heads": width // head if head else 0,
        "joint_attention_dim": file.matrix(at("context_embedder.weight"))[1],
        "pooled_projection_dim": file.matrix(at("time_text_embed.text_embedder.linear_1.weight"))[
            1
        ],
        "guidance_embeds": True,
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


def edit_variant(file: WeightFile) -> str:
    """`FileSpec.edit_variant`: Kontext, the tensors of which are those of dev."""
    del file
    return "edit"


def restore(transformer: nn.Module) -> None:
    """`FileSpec.restore`: nothing, since rotary positions are computed at every step."""
    del transformer


FILE = FileSpec(
    transformer="diffusers.FluxTransformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=_NATIVE_MARKS,
    markers=frozenset(),
    tidy=tidy,
    origin=origin,
    settings=settings,
    edit_variant=edit_variant,
    restore=restore,
    check=check_heads,
)
