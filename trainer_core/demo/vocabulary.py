"""Words and colours the bundled tiny base model understands.

What the demo asks for; the scripts that make the base say the rest.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

IMAGE_SIZE = 64
"""Edge length of every demo image, in pixels."""

SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "cross")
CONCEPT_SHAPE = "diamond"
"""The shape the base model was never shown; the demo adapter teaches it."""

OWN_SHAPE = "house"
"""Another one, taught by few images that have no ordinary ones beside them."""

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 35),
    "green": (35, 160, 60),
    "blue": (40, 75, 220),
    "yellow": (245, 225, 50),
    "purple": (145, 50, 185),
    "orange": (245, 140, 25),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}
"""Mean sRGB value (0..255) of each named colour."""

CONCEPT_COLORS: tuple[str, ...] = ("red", "yellow", "blue", "white")
"""Shape colours used by the bundled concept images; the others stay unseen."""

CAPTION_TEMPLATES: tuple[str, ...] = (
    "a {color} {shape} on a {background} background",
    "{color} {shape} on {background}",
    "a {background} background with a {color} {shape}",
    "a {color} {shape} on {background}",
    "a picture of a {color} {shape} on a {background} background",
)
"""The first template is the canonical wording."""

FRAME_EDIT = "add a frame"
"""The instruction the demo edit adapter teaches."""


class Combination(NamedTuple):
    """What one image shows."""

    shape: str
    color: str
    background: str

    def caption(self, template: int = 0) -> str:
        """Returns the caption in the wording ``CAPTION_TEMPLATES[template]``."""
        return CAPTION_TEMPLATES[template].format(**self._asdict())


def all_combinations() -> list[Combination]:
    """Returns the 224 base combinations (shape and background colours differ)."""
    return [
        Combination(shape, color, background)
        for shape, color, background in product(SHAPES, COLORS, COLORS)
        if color != background
    ]
