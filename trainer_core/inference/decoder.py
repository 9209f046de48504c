"""`PreviewDecoder`: a VAE that takes no room of a training between two previews."""

from __future__ import annotations

import torch
from torch import Tensor

from ..device import is_out_of_memory, release_memory
from ..families.diffusers_parts import DECODER_NUMBERS, Vae
from ..offload.machine import Machine

TILE = 512
"""Pixels of the side of the squares that are decoded by themselves where memory is short."""

_STAYS = 20
"""The VAE stays where so many times its size is free beside it, for the activations of a step."""


def decoding_bytes(pixels: int, dtype: torch.dtype, numbers: int) -> int:
    """What it takes at most to decode so many pixels as a whole, in the VAE's format."""
    return pixels * numbers * dtype.itemsize


_IMAGE_AXES = 4
_FRAMES = 4
"""Frames of a clip that the VAEs of videos make of one of its latents."""


class PreviewDecoder:
    """Latents to pixels, with a VAE that comes to the device for it.

    It stays there while there is plenty of room, as it does on the CPU. An image that does not fit
    as a whole is decoded in overlapping tiles.

    Args:
        vae: On any device.
        pixels: Of an image's side for each of its latents.
        machine: Says how much of it is free.
    """

    def __init__(
        self,
        vae: Vae,
        pixels: int,
        device: torch.device,
        machine: Machine,
        numbers: int = DECODER_NUMBERS,
    ) -> None:
        self._vae, self._pixels, self._device, self._machine = vae, pixels, device, machine
        self._numbers = numbers
        self._size = sum(weight.nbytes for weight in vae.model.parameters())

    def __call__(self, latents: Tensor) -> Tensor:
        """Decode.

        Args:
            latents: `[B, C, h, w]`, or of clips `[B, C, f, h, w]`, normalised.

        Returns:
            `[B, 3 or 4, H, W]`, or of clips `[B, T, 3, H, W]`, float32, in [-1, 1].
        """
        if self._device.type == "cpu":
            return self._decode(latents)
        release_memory(self._device)  # what the steps before have left counts as taken
        try:
            self._vae.model.to(self._device)
            return self._decode(latents)
        finally:
            release_memory(self._device)
            if self._machine.free_memory(self._device) < _STAYS * self._size:
                self._vae.model.to("cpu")
                release_memory(self._device)

    def _decode(self, latents: Tensor) -> Tensor:
        batch, *_, height, width = latents.shape
        clips = latents.ndim > _IMAGE_AXES
        # Clips are decoded one after the other, of each the frames of one latent at a time.
        pixels = (_FRAMES if clips else batch) * height * width * self._pixels**2
        needed = decoding_bytes(pixels, self._vae.model.dtype, self._numbers)
        if needed <= self._machine.free_memory(self._device):
            try:
                return self._vae.decode(latents)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            # Behind the handler: the error's frames hold what filled the device.
            release_memory(self._device)
        return self._vae.decode(latents, TILE)
