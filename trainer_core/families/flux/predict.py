"""The denoiser of FLUX.1 in the trainer's convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...types import Conditioning
from ..diffusers_parts import (
    computing_dtype,
    inner_module,
    pack,
    pipeline_time,
    takes_guidance,
    text_shapes,
    unpack,
)
from ..flux_blocks import positions
from ..trainable_text import CLIP_L, pooled_texts


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for FLUX.1.

    The tokens of the control image follow those of the target; the first position index tells
    them apart (0 for the target, 1 for the control, 2 and up for further ones). What FLUX.1 Fill
    reads of a control image (`fill.masked_latents`) is joined to the channels of the target.

    Each conditioning has ``text_embeddings`` `[L, D]` and ``pooled_text`` `[P]`; L is the same for
    all, as the text encoder pads them. Where CLIP-L is a part of the denoiser, it has
    ``clip_tokens`` `[77]` instead of ``pooled_text``.
    """
    dtype = computing_dtype(transformer)
    # What has other channels than the target belongs to its channels.
    joined = [each.to(noisy) for each in controls if each.shape[1] != noisy.shape[1]]
    references = [each for each in controls if each.shape[1] == noisy.shape[1]]
    images = [torch.cat([noisy, *joined], dim=1), *references]
    tokens = torch.cat([pack(image) for image in images], dim=1).to(dtype)
    text = torch.stack([item["text_embeddings"] for item in conditionings]).to(tokens)
    pooled = pooled_texts(CLIP_L, inner_module(transformer), conditionings).to(tokens)
    scale = None
    if takes_guidance(transformer):
        scale = torch.full((noisy.shape[0],), guidance, device=tokens.device)
    output = transformer(
        hidden_states=tokens,
        timestep=pipeline_time(sigma, dtype),
        guidance=scale,
        pooled_projections=pooled,
        encoder_hidden_states=text,
        txt_ids=torch.zeros(text.shape[1], 3, device=tokens.device),
        img_ids=torch.cat([positions(image, index) for index, image in enumerate(images)]),
        return_dict=False,
    )[0]
    return unpack(output, *noisy.shape[-2:]).to(noisy.dtype)


def conditioning_shapes(config: Mapping[str, Any], tokens: int) -> dict[str, tuple[int, ...]]:
    """`TextSpec.conditioning_shapes`."""
    return {**text_shapes(config, tokens), "pooled_text": (config["pooled_projection_dim"],)}
