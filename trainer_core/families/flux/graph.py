"""FLUX.1 on a graph: CLIP-L and T5 of the CLIP, and what its VAE is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ...types import Conditioning
from ..flux_vae import VAE
from ..graph_spec import ClipSpec, GraphSpec, Row
from .fill import masked_latents
from .schnell import sampled_shift

_T5 = "t5xxl"


def read(
    rows: Mapping[str, Sequence[Row]], text_length: int | None, images: int
) -> dict[str, list[Row]]:
    """`ClipSpec.read`: exactly ``text_length`` tokens of T5.

    ComfyUI would encode longer captions at their own length. They end with T5's end token, as
    Diffusers cuts them, because the captions of a batch have to be equally long. CLIP-L sees the
    first 75 tokens on both sides.
    """
    assert text_length is not None
    (row,) = rows[_T5]
    if len(row) > text_length:
        row = [*row[: text_length - 1], row[-1]]
    return {**{name: list(each) for name, each in rows.items()}, _T5: [row]}


def conditioning(text: Tensor, extra: Mapping[str, Any]) -> Conditioning:
    """`ClipSpec.conditioning`: ``text_embeddings`` `[L, D]` of T5, ``pooled_text`` of CLIP-L."""
    return {"text_embeddings": text, "pooled_text": extra["pooled_output"][0]}


GRAPH = GraphSpec(
    controls={"generate": (0, 0), "edit": (0, 1), "fill": (1, 1)},
    clip=ClipSpec(
        parts=("clip_l", _T5),
        # SD3's may be made of the same two, but it has a place for a third and joins them
        # otherwise.
        foreign=("clip_g",),
        title="the CLIP of FLUX.1: clip_l and t5xxl, loaded as type flux",
        remedy="Use DualCLIPLoader, type flux, with clip_l and t5xxl, or the CLIP of a FLUX.1 "
        "checkpoint.",
        # ComfyUI pads T5's tokens to this number.
        text_length=256,
        options=lambda length: {"t5xxl_min_length": length or 1, "t5xxl_min_padding": None},
        read=read,
        # In T5's tokens, with its end token.
        count=lambda rows: len(rows[_T5][0]),
        conditioning=conditioning,
        # The pooled text is taken from before it, and the files that people have lack it.
        unused_weights=("clip_l.transformer.text_projection.weight",),
        trainable=("l", "clip_l"),
    ),
    vae=VAE,
    shift=sampled_shift,
    encode_masked=masked_latents,
)
