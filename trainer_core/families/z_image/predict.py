"""The denoiser of Z-Image in the trainer's convention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...types import Conditioning
from ..diffusers_parts import computing_dtype

_POSITIONS = [8192, 1024, 1024]
"""Tokens of a text, rows and columns of an image for which rotary positions are computed."""


def prepare(transformer: nn.Module) -> None:
    """`LayerSpec.prepare`: longer tables of rotary positions.

    The published ones end after 1536 tokens of text. ComfyUI has no tables, and cuts no text.
    """
    rope: Any = transformer.rope_embedder
    rope.axes_lens = [max(pair) for pair in zip(rope.axes_lens, _POSITIONS, strict=True)]
    rope.freqs_cis = None


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for Z-Image.

    The model counts time from noise to image, and gives the velocity in that direction. It takes
    lists: texts may be of different lengths, each of which it fills up to a multiple of 32 with a
    token of its own. Each conditioning has ``text_embeddings`` `[L, D]`.
    """
    dtype = computing_dtype(transformer)
    # Through 0 to 1000 and back, as the pipeline does it.
    time = (1000 - sigma.float() * 1000) / 1000
    images = transformer(
        list(noisy.to(dtype).unsqueeze(2)),
        time,
        [item["text_embeddings"].to(noisy.device, dtype) for item in conditionings],
        return_dict=False,
    )[0]
    return -torch.stack(images).squeeze(2).to(noisy.dtype)
