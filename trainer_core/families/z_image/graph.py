"""Z-Image on a graph: Qwen3-4B of the CLIP, and FLUX.1's VAE."""

from __future__ import annotations

from ..chat_text import count_rows, cut_rows, real_tokens
from ..flux_vae import VAE
from ..graph_spec import ClipSpec, GraphSpec
from .encode import CHAT

GRAPH = GraphSpec(
    controls={"generate": (0, 0)},
    clip=ClipSpec(
        parts=("qwen3_4b",),
        # FLUX.2 klein has the same text encoder with another template.
        templates={"llama_template": CHAT.template},
        title="the CLIP of Z-Image: qwen_3_4b, loaded as type lumina2",
        remedy="Use Load CLIP, type lumina2, with qwen_3_4b.",
        read=cut_rows,
        count=count_rows,
        conditioning=real_tokens,
    ),
    vae=VAE,
    shift=lambda location: 3.0,  # ComfyUI 0.33, comfy/supported_models.py
)
