"""FLUX.2 on a graph: the CLIP of dev and of klein in both sizes, and what its VAE is."""

from __future__ import annotations

import math

from ...weights.base_location import BaseLocation
from ..chat_text import ChatText, count_rows, cut_rows
from ..graph_spec import ClipSpec, GraphSpec, VaeSpec
from .encode import CONTROLS, MISTRAL, QWEN, text_width

_TEXT_LENGTH = 512


def _clip(base: str, part: str, chat: ChatText, file: str) -> ClipSpec:
    """The CLIP of a base, of one text encoder, which reads at most 512 tokens.

    ComfyUI would encode longer captions at their own length, but the texts of a batch have to be
    equally long. Those of klein are filled up to that number here, those of dev in `predict`.
    """
    return ClipSpec(
        parts=(part,),
        templates={"llama_template": chat.template},
        title=f"the CLIP of {base}: {part}, loaded as type flux2",
        remedy=f"Use Load CLIP, type flux2, with {file}, which is for {base}.",
        text_length=_TEXT_LENGTH,
        options=lambda length: {f"{part}_min_length": length or 1} if chat.padded else {},
        read=cut_rows,
        count=count_rows,
        conditioning=lambda text, extra: {"text_embeddings": text},  # `[L, D]`, with padding
    )


_CLIPS = {
    15360: _clip("FLUX.2 dev", "mistral3_24b", MISTRAL, "mistral_3_small_flux2"),
    7680: _clip("FLUX.2 klein 4B", "qwen3_4b", QWEN, "qwen_3_4b"),
    12288: _clip("FLUX.2 klein 9B", "qwen3_8b", QWEN, "qwen_3_8b"),
}
"""How many numbers a text token has that a base reads, to the CLIP that gives so many."""


def clip_of(location: BaseLocation) -> ClipSpec:
    """`GraphSpec.clip_of`; a base of no published size has the CLIP of dev or of klein 4B."""
    width, guided = text_width(location)
    return _CLIPS.get(width, _CLIPS[15360 if guided else 7680])


GRAPH = GraphSpec(
    controls=CONTROLS,
    clip=_CLIPS[15360],
    clip_of=clip_of,
    shift=lambda location: math.exp(2.02),  # ComfyUI 0.33, comfy/supported_models.py
    vae=VaeSpec(
        marker="decoder.conv_in.weight",
        dimensions=4,
        channels=32,
        patch=2,
        # ComfyUI's VAE normalises them itself.
        mean=(0.0,),
        deviation=(1.0,),
        title="the VAE of FLUX.2",
        remedy="Use Load VAE with flux2-vae.safetensors.",
    ),
)
