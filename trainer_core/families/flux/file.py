"""Single files of FLUX.1, in ComfyUI's naming (that of Black Forest Labs) or in Diffusers'."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from torch import nn

from ...weights.file_spec import FileSpec, Origin
from ...weights.header import WeightFile
from ..layer_sizes import check_heads
from .keys import DOUBLE_NAMES, SINGLE_NAMES, native_key

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
