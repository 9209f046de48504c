"""Sizes of control images that are not tied to the size of their target."""

from __future__ import annotations

import math

_SIDE = 32


def area_size(width: int, height: int, area: int) -> tuple[int, int]:
    """The size of about so many pixels that has an image's own shape.

    Args:
        width: Width of the image in pixels.
        height: Height of the image in pixels.
        area: Number of pixels wanted.

    Returns:
        Width and height, each a multiple of 32 and at least 32.

    Source: Diffusers, ``calculate_dimensions`` of the Qwen-Image edit pipelines.
    """
    ratio = width / height
    wide = math.sqrt(area * ratio)
    high = wide / ratio
    return max(round(wide / _SIDE), 1) * _SIDE, max(round(high / _SIDE), 1) * _SIDE
