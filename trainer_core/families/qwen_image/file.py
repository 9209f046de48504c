"""Single files of Qwen-Image: ComfyUI's names are Diffusers' own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import nn

from ...weights.file_spec import FileSpec, Origin
from ...weights.header import WeightFile
from ..layer_sizes import check_heads

_ZERO_MARK = "__index_timestep_zero__"
_LAYERED = "time_text_embed.addition_t_embedding.weight"
_PLUS = re.compile(r"2509|2511|plus")


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`.

    Qwen-Image-Edit-2511 has the tensors of its forerunners, but was trained with control images
    modulated as if without noise. ComfyUI's files of it have a marker; files of others only say so
    in their names.
    """
    if _LAYERED in file.tensors:
        raise file.broken(
            "it is Qwen-Image-Layered", "Qwen-Image, or Qwen-Image-Edit with its successors"
        )
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
    return found


def edit_variant(file: WeightFile) -> str:
    """`FileSpec.edit_variant`: several control images, unless only the first edit model fits."""
    if _ZERO_MARK in file.tensors or _PLUS.search(file.hints):
        return "edit_plus"
    return "edit" if "edit" in file.hints else "edit_plus"


def restore(transformer: nn.Module) -> None:
    """`FileSpec.restore`: the rotary tables, which are no buffers."""
    empty: Any = transformer.pos_embed
    transformer.pos_embed = type(empty)(
        theta=empty.theta, axes_dim=empty.axes_dim, scale_rope=empty.scale_rope
    )


def origin(name: str, native: bool) -> Origin:
    """`FileSpec.origin`: every name is the same."""
    del native
    return Origin(name)


def tidy(file: WeightFile) -> WeightFile:
    """`FileSpec.tidy`: there is one spelling only."""
    return file


FILE = FileSpec(
    transformer="diffusers.QwenImageTransformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=(),
    markers=frozenset({_ZERO_MARK}),
    tidy=tidy,
    origin=origin,
    settings=settings,
    edit_variant=edit_variant,
    restore=restore,
    check=check_heads,
)
