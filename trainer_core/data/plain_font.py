"""Text on images, with the font that comes with Pillow."""

from __future__ import annotations

from PIL import ImageFont


def plain_letters(text: str) -> str:
    """What the font that comes with Pillow has; other letters become question marks."""
    return text.encode("ascii", "replace").decode("ascii")


def plain_font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """The font, at a size in pixels."""
    return ImageFont.load_default(size)
