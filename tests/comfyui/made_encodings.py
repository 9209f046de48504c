"""Encodings that were made before a run, for a family's own way and for a MODEL of the graph.

Both interpreters import this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class MadeEncodings:
    """An `EncoderSource` that looks up what it gives.

    Args:
        identity: Names it.
        texts: A caption to its conditioning.
        latents: A number of places along a side to latents `[C, h, w]`.
        pixels: Of an image's side for each latent.
    """

    def __init__(self, identity: str, texts: Mapping, latents: Callable, pixels: int) -> None:
        self.identity, self.texts, self.latents, self.pixels = identity, texts, latents, pixels

    def open(self):
        return self

    def encode_text(self, caption, controls=()):
        return dict(self.texts[caption])

    def encode_image(self, pixels):
        import torch

        high, wide = (side // self.pixels for side in pixels.shape[-2:])
        # Other images have other latents.
        return torch.stack([self.latents(high, wide, float(each.mean())) for each in pixels])

    def decoder(self):
        return lambda latents: latents

    def text_limit(self):
        return None

    def close(self):
        """There is nothing to let go of."""


def made_latents(channels: int) -> Callable:
    """Latents of an image as random numbers that its brightness chooses."""
    import torch

    def latents(high: int, wide: int, brightness: float):
        generator = torch.Generator().manual_seed(round(1e4 * (1 + brightness)))
        return torch.randn(channels, high, wide, generator=generator)

    return latents
