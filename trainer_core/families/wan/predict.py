"""The denoiser of Wan in the trainer's convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...types import ENDS, START, Conditioning
from ..diffusers_parts import computing_dtype, inner_module, pad_text

TEXT_ROWS = 512
"""Rows of a text that the denoiser reads at least; those behind the text are zero."""

CHANNELS = "channels"
FIRST, BOTH = f"{START}.{CHANNELS}", f"{ENDS}.{CHANNELS}"
"""What of a conditioning are the frames that a clip is given, behind the noise."""


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for Wan.

    Each conditioning has ``text_embeddings`` `[L, D]`, without padding, and of a base for start
    frames the channels of them `[4 + C, f, h, w]`; they are 0 where none is given, as in ComfyUI.
    An image is a clip of one frame. No base takes control images or guidance.
    """
    del controls, guidance
    dtype = computing_dtype(transformer)
    text, _ = pad_text([item["text_embeddings"] for item in conditionings])
    text = nn.functional.pad(text, (0, 0, 0, max(0, TEXT_ROWS - text.shape[1])))
    clip = noisy if noisy.ndim == 5 else noisy.unsqueeze(2)
    more = inner_module(transformer).config.in_channels - clip.shape[1]
    if more:
        none = clip.new_zeros(more, *clip.shape[2:])
        started = [item.get(FIRST, item.get(BOTH, none)) for item in conditionings]
        clip = torch.cat([clip, torch.stack(started).to(clip)], dim=1)
    velocity = transformer(
        hidden_states=clip.to(dtype),
        timestep=sigma.to(noisy.device, torch.float32) * 1000,
        encoder_hidden_states=text.to(noisy.device, dtype),
        return_dict=False,
    )[0]
    return velocity.reshape(noisy.shape).to(noisy.dtype)


def conditioning_shapes(config: Mapping[str, Any], tokens: int) -> dict[str, tuple[int, ...]]:
    """`TextSpec.conditioning_shapes`."""
    return {"text_embeddings": (tokens, config["text_dim"])}
