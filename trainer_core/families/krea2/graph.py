"""Krea 2 on a graph: Qwen3-VL of the CLIP, and what its VAE is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from ...types import Conditioning
from ..chat_text import count_rows, cut_rows, real_tokens, second_message
from ..graph_spec import ClipSpec, GraphSpec
from ..qwen_vae import VAE
from .encode import STATES, TEMPLATE


def conditioning(text: Tensor, extra: Mapping[str, Any]) -> Conditioning:
    """`ClipSpec.conditioning`: ``text_embeddings`` `[L, S, D]`; ComfyUI has them `[L, S D]`."""
    return {
        name: tensor.unflatten(-1, (len(STATES), -1))
        for name, tensor in real_tokens(text, extra).items()
    }


_WITH_IMAGE = (
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n"
    "<|im_start|>assistant\n"
)

GRAPH = GraphSpec(
    controls={"generate": (0, 0)},
    clip=ClipSpec(
        parts=("qwen3vl_4b",),
        # Mage-Flow's has the same for captions alone, and its own for images.
        templates={"llama_template": TEMPLATE, "llama_template_images": _WITH_IMAGE},
        title="the CLIP of Krea 2: qwen3vl_4b, loaded as type krea2",
        remedy="Use Load CLIP, type krea2, with qwen3vl_4b.",
        prompt=lambda variant, caption, images: TEMPLATE.replace("{}", caption),
        read=partial(cut_rows, start=second_message),
        count=partial(count_rows, start=second_message),
        conditioning=conditioning,
    ),
    vae=VAE,
)
