"""Chroma on a graph: T5 of the CLIP, and FLUX.1's VAE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ...types import Conditioning
from ..flux_vae import VAE
from ..graph_spec import ClipSpec, GraphSpec, Row

_T5 = "t5xxl"


def read(
    rows: Mapping[str, Sequence[Row]], text_length: int | None, images: int
) -> dict[str, list[Row]]:
    """`ClipSpec.read`: a longer caption than ``text_length`` keeps its end token."""
    (row,) = rows[_T5]
    if text_length is not None and len(row) > text_length:
        row = [*row[: text_length - 1], row[-1]]
    return {_T5: [list(row)]}


def conditioning(text: Tensor, extra: Mapping[str, Any]) -> Conditioning:
    """`ClipSpec.conditioning`: ``text_embeddings`` `[L, D]`."""
    return {"text_embeddings": text}


GRAPH = GraphSpec(
    controls={"generate": (0, 0)},
    clip=ClipSpec(
        parts=(_T5,),
        # SD3's may be made of T5 alone, but it has places for two more.
        foreign=("clip_g",),
        title="the CLIP of Chroma: t5xxl, loaded as type chroma",
        remedy="Use Load CLIP, type chroma, with t5xxl.",
        # Nothing is padded, whatever a node before it asks for.
        options=lambda length: {"t5xxl_min_length": 1, "t5xxl_min_padding": None},
        read=read,
        count=lambda rows: len(rows[_T5][0]),
        conditioning=conditioning,
    ),
    vae=VAE,
    shift=lambda location: 1.0,  # ComfyUI 0.33, comfy/supported_models.py
)
