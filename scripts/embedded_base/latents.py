"""Pictures to the packed, normalised latents of the transformer, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage

from .flat_vae import FlatVAE
from .vae import to_images, to_tensor

PATCH = 2


def packed(latents: torch.Tensor) -> torch.Tensor:
    """Packs latents ``[B, C, h, w]`` into tokens ``[B, (h/2)(w/2), 4C]``."""
    batch, channels, height, width = latents.shape
    grid = latents.reshape(batch, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * PATCH * PATCH)


def unpacked(tokens: torch.Tensor) -> torch.Tensor:
    """Reverts ``packed`` for square pictures, ``[B, n*n, 4C]`` to ``[B, C, 2n, 2n]``."""
    batch, count, width = tokens.shape
    edge, channels = round(count**0.5), width // (PATCH * PATCH)
    grid = tokens.reshape(batch, edge, edge, channels, PATCH, PATCH)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, edge * PATCH, edge * PATCH)


@dataclass(frozen=True)
class LatentCodec:
    """Encodes and decodes whole batches of pictures.

    Attributes:
        flat: The fast twin of the autoencoder.
        mean: Mean of each latent channel, ``[1, z, 1, 1]``.
        std: Spread of each latent channel, ``[1, z, 1, 1]``.
    """

    flat: FlatVAE
    mean: torch.Tensor
    std: torch.Tensor

    @classmethod
    def of(cls, vae: AutoencoderKLQwenImage) -> LatentCodec:
        """Makes the codec of an autoencoder with recorded statistics."""
        shape = (1, -1, 1, 1)
        mean = torch.tensor(vae.config.latents_mean).view(shape)
        return cls(FlatVAE(vae).eval(), mean, torch.tensor(vae.config.latents_std).view(shape))

    @torch.no_grad()
    def encode(self, images: np.ndarray, chunk: int = 64) -> torch.Tensor:
        """Encodes uint8 ``[B, H, W, 3]`` to normalised tokens ``[B, n, 4z]``."""
        parts = [
            packed((self.flat.encode(to_tensor(images[i : i + chunk])) - self.mean) / self.std)
            for i in range(0, len(images), chunk)
        ]
        return torch.cat(parts)

    @torch.no_grad()
    def decode(self, tokens: torch.Tensor, chunk: int = 64) -> np.ndarray:
        """Decodes normalised tokens ``[B, n, 4z]`` to uint8 ``[B, H, W, 3]``."""
        latents = unpacked(tokens) * self.std + self.mean
        parts = [
            to_images(self.flat.decode(latents[i : i + chunk]))
            for i in range(0, len(latents), chunk)
        ]
        return np.concatenate(parts)
