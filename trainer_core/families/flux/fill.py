"""What FLUX.1 Fill reads beside noisy latents: the image without what is to be filled, and a mask.

ComfyUI's ``InpaintModelConditioning`` makes it so. Diffusers' ``FluxFillPipeline`` differs in two
things: it rounds the mask that the denoiser reads, and draws the latents from the VAE's
distribution, of which ComfyUI takes the mean.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SIDE = 8
"""Pixels of an image's side for each latent."""

MASK = SIDE * SIDE
"""Channels of a mask: the pixels of each latent's place, row after row."""


def masked_latents(pixels: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Encode an image with a transparent area, `[B, 4, H, W]` in [-1, 1], alpha last.

    Sides are multiples of 8; `encode` makes normalised latents `[B, C, h, w]` of pixels `[B, 3, H,
    W]`. Gives `[B, C + 64, h, w]`: latents of the image that is grey where it is mostly
    transparent, and the mask, 1 where it is to be filled, as it is.
    """
    mask = 0.5 - pixels[:, 3:] / 2
    latents = encode(pixels[:, :3] * (1 - mask.round()))
    places = mask.unflatten(3, (-1, SIDE)).unflatten(2, (-1, SIDE))
    folded = places.squeeze(1).permute(0, 2, 4, 1, 3).flatten(1, 2)
    return torch.cat([latents, folded.to(latents)], dim=1)
