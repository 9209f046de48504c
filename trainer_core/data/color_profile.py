"""Colours as they are meant: images that carry a colour profile, turned into sRGB.

A camera's or phone's numbers in Adobe RGB or Display P3 read as sRGB look pale; the VAE knows sRGB
only.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageCms

_MODES = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
"""Colour space in a profile's header (ICC.1, 7.2.6), to the mode of the numbers it describes."""

_FITTING = {"RGB": {"RGB", "P", "L", "1"}, "L": {"L", "1"}, "CMYK": {"CMYK"}}
"""Such a mode, to those of the images that have these numbers."""

_SAME = 2
"""Steps of 255 within which a profile is sRGB by another name; many write their own sRGB."""

# Bytes that are no profile, one of a kind that has no colours, or a Pillow built without LittleCMS.
_UNUSABLE = (ImageCms.PyCMSError, OSError, ValueError, TypeError, ImportError)


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Turn an image without transparency into sRGB.

    Args:
        image: Of mode RGB, L, 1, P or CMYK.
        profile: The ICC profile that came with it, or None.

    Returns:
        An image of mode RGB. Its numbers are the plain conversion's where there is no profile,
        where the profile is sRGB itself, and where it is damaged or does not fit the image.
    """
    if profile:
        try:
            meant = _converted(image, profile)
        except _UNUSABLE:
            meant = None
        if meant is not None:
            return meant
    return image.convert("RGB")


def _converted(image: Image.Image, profile: bytes) -> Image.Image | None:
    mode = _MODES.get(profile[16:20])
    if mode is None or image.mode not in _FITTING[mode]:
        return None
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    if mode != "CMYK" and _is_srgb(transform, mode):
        return None
    return ImageCms.applyTransform(image.convert(mode), transform)


def _is_srgb(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    before = Image.fromarray(_SAMPLES).convert(mode)
    after = ImageCms.applyTransform(before, transform)
    if after is None:
        return False
    moved = np.asarray(after, np.int16) - np.asarray(before.convert("RGB"), np.int16)
    return int(np.abs(moved).max()) <= _SAME


def _samples() -> np.ndarray:
    """All greys, and colours all over the cube, uint8 `[1, N, 3]`."""
    greys = np.arange(256).repeat(3).reshape(-1, 3)
    levels = np.arange(0, 256, 51)
    colours = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
    return np.concatenate([greys, colours]).astype(np.uint8)[None]


_SAMPLES = _samples()
