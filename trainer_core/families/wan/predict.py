"""The denoiser of Wan in the trainer's convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BaseModelError
from ...types import ENDS, START, Conditioning
from ..diffusers_parts import computing_dtype, inner_module, pad_text

TEXT_ROWS = 512
"""Rows of a text that the denoiser reads at least; those behind the text are zero."""

CHANNELS, VISION, FRAMES, CLEAN = "channels", "vision", "frames", "clean"
"""What of a conditioning are the frames that a clip is given, behind `START` or `ENDS`: channels
behind the noise, tokens of a vision model, or clean latents in the place of noise."""

_SEEN = 257
"""Tokens of a frame: squares of 14 pixels of 224 a side, and one for all."""


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for Wan.

    Each conditioning has ``text_embeddings`` `[L, D]`, without padding. Of a base for start frames
    it has the channels of them `[4 + C, f, h, w]`, which are 0 where none is given, as in ComfyUI,
    and of Wan 2.1 their ``vision`` `[V, E]`; of TI2V-5B the latents of a first frame
    `[C, 1, h, w]`, or none. An image is a clip of one frame. No base takes control images or
    guidance.

    Raises:
        BaseModelError: When Wan 2.1 is given no frame, without which it predicts nothing.
    """
    del controls, guidance
    dtype, config = computing_dtype(transformer), inner_module(transformer).config
    views = [_of_frames(item, VISION) for item in conditionings] if config.image_dim else []
    if any(each is None for each in views):
        raise BaseModelError(
            "Wan 2.1 I2V is to predict without a start frame",
            "a clip, whose first frame it is given",
            "Train clips with it, without a slider and without preserved images.",
        )
    # One frame twice is attended to as it is once, and fills a batch with two.
    views = [each.repeat(max(map(len, views)) // len(each), 1) for each in views]
    text, _ = pad_text([item["text_embeddings"] for item in conditionings])
    text = nn.functional.pad(text, (0, 0, 0, max(0, TEXT_ROWS - text.shape[1])))
    clip = noisy if noisy.ndim == 5 else noisy.unsqueeze(2)
    more = config.in_channels - clip.shape[1]
    time = sigma.to(noisy.device, torch.float32) * 1000
    clean = [] if more else [_of_frames(item, FRAMES) for item in conditionings]
    if any(each is not None for each in clean):
        clip, time = _laid_over(clip, time, clean)
    inputs = clip
    if more:
        none = clip.new_zeros(more, *clip.shape[2:])
        started = [_of_frames(item, CHANNELS, none) for item in conditionings]
        inputs = torch.cat([clip, torch.stack(started).to(clip)], dim=1)
    velocity = transformer(
        hidden_states=inputs.to(dtype),
        timestep=time,
        # The denoiser takes all rows but these for those of the vision model.
        encoder_hidden_states=(text[:, :TEXT_ROWS] if views else text).to(noisy.device, dtype),
        encoder_hidden_states_image=torch.stack(views).to(noisy.device, dtype) if views else None,
        return_dict=False,
    )[0]
    if time.ndim > 1:
        velocity = _kept(velocity, noisy, clip, sigma=sigma, clean=clean)
    return velocity.reshape(noisy.shape).to(noisy.dtype)


def _of_frames(item: Conditioning, name: str, other: Any = None) -> Any:
    """What of the frames that a clip is given has this name."""
    return item.get(f"{START}.{name}", item.get(f"{ENDS}.{name}", other))


def _laid_over(clip: Tensor, time: Tensor, clean: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Put clean latents into the first frame, and 0 into the times `[B, S]` of its tokens.

    Source: Diffusers' ``WanImageToVideoPipeline`` where ``expand_timesteps`` is set.
    """
    rows = [
        x if each is None else torch.cat([each.to(x), x[:, 1:]], 1)
        for x, each in zip(clip, clean, strict=True)
    ]
    *_, frames, height, width = clip.shape
    tokens = time.view(-1, 1, 1).repeat(1, frames, (height // 2) * (width // 2))
    for row, each in enumerate(clean):
        if each is not None:
            tokens[row, 0] = 0.0
    return torch.stack(rows), tokens.flatten(1)


def _kept(
    velocity: Tensor, noisy: Tensor, clip: Tensor, sigma: Tensor, clean: Sequence[Tensor | None]
) -> Tensor:
    """In the first frame the straight way to the clean latents, so that a generation ends there."""
    kept = velocity.clone()
    for row, each in enumerate(clean):
        if each is not None:
            kept[row, :, 0] = (noisy[row, :, 0] - clip[row, :, 0]) / sigma[row].to(noisy)
    return kept


def conditioning_shapes(config: Mapping[str, Any], tokens: int) -> dict[str, tuple[int, ...]]:
    """`TextSpec.conditioning_shapes`."""
    shapes = {"text_embeddings": (tokens, config["text_dim"])}
    if vision := config.get("image_dim"):
        shapes[f"{START}.{VISION}"] = (_SEEN, vision)
    return shapes
