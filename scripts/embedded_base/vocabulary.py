"""What only the making of the base says: edits, the frame, and which combinations are held out."""

from __future__ import annotations

import hashlib

from trainer_core.demo.vocabulary import Combination, all_combinations

FRAME_WIDTH = 6
"""Width of the grey frame of the demo edit, in pixels."""

FRAME_COLOR: tuple[int, int, int] = (128, 128, 128)

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

_HELD_OUT_SEED = "tiny-qwen-image-1"
_HELD_OUT_COUNT = 45


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
