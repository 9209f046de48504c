"""Latents as a sequence of 2x2 patches, and back; shared by families that read them so."""

from __future__ import annotations

from torch import Tensor


def pack(latents: Tensor) -> Tensor:
    """Turn every 2x2 patch into one token.

    Args:
        latents: `[B, C, h, w]`, with even h and w.

    Returns:
        `[B, (h/2) (w/2), 4C]`; within a token the order is channel, row, column.
    """
    batch, channels, height, width = latents.shape
    patches = latents.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """Undo `pack`.

    Args:
        tokens: `[B, (h/2) (w/2), 4C]`.
        height: h, even.
        width: w, even.

    Returns:
        `[B, C, h, w]`.
    """
    patches = tokens.unflatten(2, (-1, 2, 2)).unflatten(1, (height // 2, width // 2))
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
