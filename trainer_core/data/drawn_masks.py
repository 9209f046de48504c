"""Areas that an inpainting base learns to fill: an image's own transparency, or drawn ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from PIL import Image, ImageDraw

from ..config import DatasetSection
from ..counters import counter_seed
from ..errors import ConfigError
from ..types import Sample

VERSION = 1
"""Of the way masks are drawn: another one gives other masks, and so other cached files."""

_WHOLE, _BORDER, _SHAPES = 0.05, 0.15, 0.5
"""Shares of masks that are the whole image, all but a window, and shapes; the rest are strokes."""


def with_areas(
    samples: Sequence[Sample], settings: DatasetSection, fills: bool
) -> tuple[Sample, ...]:
    """Samples for a base that fills an area: without a control image the target is it.

    Args:
        fills: Whether the base does; others get the samples as they are.

    Raises:
        ConfigError: When control images are to have a size of their own.
    """
    if not fills:
        return tuple(samples)
    if settings.control_area is not None:
        raise ConfigError(
            "dataset.control_area is set, and the base fills images",
            "control images of the size of the image that is to come out",
            "Leave dataset.control_area out.",
        )
    return tuple(
        each if each.controls else replace(each, controls=(each.image,)) for each in samples
    )


def with_mask(image: Image.Image, seed: int) -> Image.Image:
    """Give an image (RGBA) a transparent area to be filled, unless it has one.

    Args:
        image: RGB or RGBA, at the size it is encoded at.
        seed: Names the mask; the same seed and size give the same one.
    """
    plain = image.convert("RGBA")
    least, _ = plain.getchannel("A").getextrema()
    assert isinstance(least, (int, float))
    if least < 255:
        return plain
    plain.putalpha(_Drawing(image.size, seed).kept())
    return plain


class _Drawing:
    """One mask: 255 where the image is kept."""

    def __init__(self, size: tuple[int, int], seed: int) -> None:
        self._size, self._seed, self._drawn = size, seed, 0
        self._mask = Image.new("L", size, 255)
        self._draw = ImageDraw.Draw(self._mask)

    def kept(self) -> Image.Image:
        kind = self._number()
        if kind < _WHOLE:
            return Image.new("L", self._size, 0)
        if kind < _BORDER:
            # A window of 30 to 80 % of each side, as when an image is continued outwards.
            self._mask.paste(0, (0, 0, *self._size))
            self._draw.rectangle(self._box(0.3, 0.8), fill=255)
        elif kind < _SHAPES:
            for _ in range(1 + int(3 * self._number())):
                box = self._box(0.15, 0.6)
                shape = self._draw.rectangle if self._number() < 0.5 else self._draw.ellipse
                shape(box, fill=0)
        else:
            for _ in range(1 + int(3 * self._number())):
                self._stroke()
        return self._mask

    def _number(self) -> float:
        """The next number in [0, 1)."""
        self._drawn += 1
        return counter_seed(self._seed, "mask", self._drawn) / 2**63

    def _box(self, least: float, most: float) -> tuple[int, int, int, int]:
        """A box of such a share of each side, anywhere inside."""
        sides = [int(side * (least + (most - least) * self._number())) for side in self._size]
        starts = [
            int((whole - side) * self._number())
            for whole, side in zip(self._size, sides, strict=True)
        ]
        left, top = starts
        return left, top, left + max(sides[0], 1), top + max(sides[1], 1)

    def _stroke(self) -> None:
        """A thick line of a few bends, as a brush leaves it."""
        wide, high = self._size
        short = min(wide, high)
        radius = max(short * (0.03 + 0.07 * self._number()), 1)
        place = [wide * self._number(), high * self._number()]
        angle = 2 * math.pi * self._number()
        for _ in range(3 + int(5 * self._number())):
            angle += math.pi * (self._number() - 0.5)
            length = short * (0.1 + 0.3 * self._number())
            further = [place[0] + length * math.cos(angle), place[1] + length * math.sin(angle)]
            self._draw.line((*place, *further), fill=0, width=round(2 * radius))
            x, y = further
            self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=0)
            place = further
