"""Words and colours the bundled tiny base model understands.

Plain constants and small pure functions, shared by the script that draws the
training pictures and by the demo that asks for pictures again.
"""

from __future__ import annotations

import hashlib
from itertools import product
from typing import NamedTuple

PICTURE_SIZE = 64
"""Edge length of every demo picture, in pixels."""

FRAME_WIDTH = 6
"""Width of the grey frame of the demo edit, in pixels."""

SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "cross")
CONCEPT_SHAPE = "diamond"
"""The shape the base model was never shown; the demo adapter teaches it."""

OWN_SHAPE = "house"
"""Another one, taught by few pictures that have no ordinary ones beside them."""

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

FRAME_COLOR: tuple[int, int, int] = (128, 128, 128)

CONCEPT_COLORS: tuple[str, ...] = ("red", "yellow", "blue", "white")
"""Shape colours used by the bundled concept pictures; the others stay unseen."""

CAPTION_TEMPLATES: tuple[str, ...] = (
    "a {color} {shape} on a {background} background",
    "{color} {shape} on {background}",
    "a {background} background with a {color} {shape}",
    "a {color} {shape} on {background}",
    "a picture of a {color} {shape} on a {background} background",
)
"""The first template is the canonical wording."""

SHAPE_COLOR_EDITS: tuple[str, ...] = (
    "make the shape {color}",
    "turn the shape {color}",
    "change the shape color to {color}",
    "paint the shape {color}",
    "make the {old_shape} {color}",
)
BACKGROUND_EDITS: tuple[str, ...] = (
    "make the background {background}",
    "change the background to {background}",
    "turn the background {background}",
    "paint the background {background}",
)
SHAPE_EDITS: tuple[str, ...] = (
    "turn the shape into a {shape}",
    "change the shape to a {shape}",
    "make the shape a {shape}",
    "replace the {old_shape} with a {shape}",
)
FRAME_EDIT = "add a frame"
"""The instruction the demo edit adapter teaches."""

_HELD_OUT_SEED = "tiny-qwen-image-1"
_HELD_OUT_COUNT = 45


class Combination(NamedTuple):
    """What one picture shows.

    Attributes:
        shape: Name of the shape.
        color: Name of the colour of the shape.
        background: Name of the colour of the background.
    """

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


def held_out_combinations() -> list[Combination]:
    """Returns the 45 combinations that the base model is never trained on.

    A hash decides instead of a random generator, so that the list can not
    change with the version of a library.
    """

    def rank(combination: Combination) -> str:
        text = " ".join((_HELD_OUT_SEED, *combination))
        return hashlib.sha256(text.encode()).hexdigest()

    return sorted(all_combinations(), key=rank)[:_HELD_OUT_COUNT]


def training_combinations() -> list[Combination]:
    """Returns the combinations that the base model is trained on."""
    held_out = set(held_out_combinations())
    return [combination for combination in all_combinations() if combination not in held_out]
