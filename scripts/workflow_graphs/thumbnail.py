"""Small images of workflows: what a run generated, or a card where none can be run here.

ComfyUI's template browser lays a badge over the upper left corner, and shows the image at half this
size: nothing stands under `BADGE`, and no letters are smaller than twice what can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

SIDE = 512
BADGE = (0, 0, 300, 84)
"""Left, top, right and bottom of what the badge covers on a small card, with some room."""

_GROUND, _TEXT, _QUIET, _OURS = "#1b1c1e", "#f2f2f2", "#a9adb3", "#2f6fd0"
_MARGIN = 16
_FOOT = 96
"""Height at the lower edge, where the title stands."""


def of_images(title: str, columns: Sequence[tuple[str, Sequence[Image.Image]]]) -> Image.Image:
    """A table of images that a run generated, above a title.

    Args:
        title: Two lines at most.
        columns: What each column shows, and its images from above to below.
    """
    canvas = Image.new("RGB", (SIDE, SIDE), _GROUND)
    draw = ImageDraw.Draw(canvas)
    _foot(draw, title)
    rows = max(len(images) for _, images in columns)
    top, gap = BADGE[3] + 34, 10
    width = (SIDE - 2 * _MARGIN - gap * (len(columns) - 1)) // len(columns)
    side = min(width, (SIDE - _FOOT - top - gap * (rows - 1)) // rows)
    left = (SIDE - side * len(columns) - gap * (len(columns) - 1)) // 2
    top += (SIDE - _FOOT - top - side * rows - gap * (rows - 1)) // 2
    for index, (label, images) in enumerate(columns):
        x = left + index * (side + gap)
        draw.text((x + side / 2, top - 8), label, _QUIET, _font(22), anchor="ms")
        for row, image in enumerate(images):
            # The embedded base generates 64 pixels; its own are shown and none are made up.
            shown = image.convert("RGB").resize((side, side), Image.Resampling.NEAREST)
            canvas.paste(shown, (x, top + row * (side + gap)))
    return canvas


def of_words(title: str, name: str, facts: Sequence[str]) -> Image.Image:
    """A card for a workflow that cannot be run without its models: no image is made up.

    Args:
        title: Two lines at most.
        name: Of the base, in large letters.
        facts: A line each.
    """
    canvas = Image.new("RGB", (SIDE, SIDE), _GROUND)
    draw = ImageDraw.Draw(canvas)
    _foot(draw, title)
    large = next(
        font for size in range(64, 24, -2) if (font := _font(size)).getlength(name) <= SIDE - 64
    )
    draw.rectangle((_MARGIN, 140, SIDE - _MARGIN, 146), fill=_OURS)
    draw.text((SIDE / 2, 212), name, _TEXT, large, anchor="mm")
    for row, fact in enumerate(facts):
        draw.text((SIDE / 2, 286 + 38 * row), fact, _QUIET, _font(26), anchor="mm")
    return canvas


def _foot(draw: ImageDraw.ImageDraw, title: str) -> None:
    place = (SIDE / 2, SIDE - _FOOT / 2)
    draw.multiline_text(place, title, _TEXT, _font(30), anchor="mm", align="center", spacing=6)


def _font(size: int) -> Any:
    return ImageFont.load_default(size)
