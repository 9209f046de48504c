"""Samples many small pictures at once with the Euler method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from diffusers import QwenImageTransformer2DModel

from .conditioning import TextBatch


@dataclass(frozen=True)
class SamplingSettings:
    """How pictures are sampled.

    Attributes:
        steps: Number of Euler steps.
        guidance: Classifier-free guidance scale; 1 switches it off.
        shift: Warps the noise levels towards more noise; 1 keeps them even.
    """

    steps: int = 20
    guidance: float = 4.0
    shift: float = 1.0


def noise_levels(settings: SamplingSettings) -> list[float]:
    """Returns the levels from 1 down to 0, one more than there are steps."""
    even = [1 - i / settings.steps for i in range(settings.steps)]
    shifted = [settings.shift * s / (1 + (settings.shift - 1) * s) for s in even]
    return [*shifted, 0.0]


def velocity(
    transformer: QwenImageTransformer2DModel,
    tokens: torch.Tensor,
    level: torch.Tensor,
    text: TextBatch,
    controls: torch.Tensor | None = None,
) -> torch.Tensor:
    """Predicts noise minus picture.

    Args:
        transformer: The denoiser.
        tokens: Noisy latent tokens, ``[B, n, 4z]``.
        level: Noise level in 0..1 of each picture, ``[B]``.
        text: Text conditioning of the B pictures.
        controls: Latent tokens of the control pictures, for edits.

    Returns:
        The prediction, ``[B, n, 4z]``.
    """
    edge = math.isqrt(tokens.shape[1])
    grid = (1, edge, edge)
    sequence = tokens if controls is None else torch.cat([tokens, controls], dim=1)
    output = transformer(
        hidden_states=sequence,
        timestep=level,
        encoder_hidden_states=text.states,
        encoder_hidden_states_mask=None if bool(text.mask.all()) else text.mask,
        img_shapes=[[grid] if controls is None else [grid, grid]] * len(tokens),
        return_dict=False,
    )[0]
    return output[:, : tokens.shape[1]]


def guided(positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
    """Applies guidance and restores the length of each token, as the pipelines do."""
    combined = negative + scale * (positive - negative)
    return combined * (positive.norm(dim=-1, keepdim=True) / combined.norm(dim=-1, keepdim=True))


@torch.no_grad()
def sample(
    transformer: QwenImageTransformer2DModel,
    noise: torch.Tensor,
    text: TextBatch,
    empty: TextBatch | None = None,
    controls: torch.Tensor | None = None,
    settings: SamplingSettings | None = None,
) -> torch.Tensor:
    """Turns noise into the latent tokens of pictures.

    Args:
        transformer: The denoiser.
        noise: Gaussian noise, ``[B, n, 4z]``.
        text: Conditioning of the wanted pictures.
        empty: Conditioning without words, for guidance.
        controls: Latent tokens of the control pictures, for edits.
        settings: Steps and guidance.

    Returns:
        Normalised latent tokens, ``[B, n, 4z]``.
    """
    settings = settings or SamplingSettings()
    levels = noise_levels(settings)
    tokens = noise
    for level, following in pairwise(levels):
        at = torch.full((len(tokens),), level)
        step = velocity(transformer, tokens, at, text, controls)
        if empty is not None and settings.guidance != 1:
            negative = velocity(transformer, tokens, at, empty, controls)
            step = guided(step, negative, settings.guidance)
        tokens = tokens + (following - level) * step
    return tokens
