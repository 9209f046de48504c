"""What the demonstration asks an adapter, and how the answers are marked.

Each question is a prompt (for edits also a control image) with what a right image shows. The
marks are given by `read_image`, which knows nothing of how images are generated or trained.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from PIL import Image

from .checker import Reading, read_image
from .vocabulary import COLORS, CONCEPT_SHAPE, FRAME_EDIT, SHAPES, Combination, all_combinations

MAXIMUM_SHIFT = 0.12
"""How far an edit may move the shape, as a share of the image."""


@dataclass(frozen=True, slots=True)
class Question:
    """One image to sample.

    Attributes:
        right: Whether a reading of the image is a right answer.
    """

    text: str
    right: Callable[[Reading], bool]
    control: Image.Image | None = None


def concept_questions(count: int, seed: int, shape: str = CONCEPT_SHAPE) -> list[Question]:
    """Ask for a concept in all colours, those absent from its training images too."""
    combinations = [
        Combination(shape, color, background)
        for color, background in product(COLORS, COLORS)
        if color != background
    ]
    return [_caption_question(c) for c in _draw(combinations, count, seed)]


def combination_questions(combinations: Sequence[Combination]) -> list[Question]:
    """Ask for combinations, by their captions."""
    return [_caption_question(combination) for combination in combinations]


def base_questions(count: int, seed: int) -> list[Question]:
    """Ask for what the base could generate before."""
    return [_caption_question(c) for c in _draw(all_combinations(), count, seed)]


def frame_questions(controls: Sequence[Image.Image]) -> list[Question]:
    """Ask for a frame around each image, with all else as it was."""
    return [_frame_question(control) for control in controls]


def base_edit_questions(controls: Sequence[Image.Image], seed: int) -> list[Question]:
    """Ask for an edit that the base could make before."""
    rng = random.Random(seed)
    return [_edit_question(control, rng) for control in controls]


def mark(questions: Sequence[Question], images: Sequence[np.ndarray]) -> float:
    """Give the share of right answers, in [0, 1]."""
    right = [
        question.right(read_image(image)) for question, image in zip(questions, images, strict=True)
    ]
    return sum(right) / len(right)


def _draw(combinations: Sequence[Combination], count: int, seed: int) -> list[Combination]:
    rng = random.Random(seed)
    shuffled = list(combinations)
    rng.shuffle(shuffled)
    return [shuffled[index % len(shuffled)] for index in range(count)]


def _caption_question(wanted: Combination) -> Question:
    def right(reading: Reading) -> bool:
        found = reading.shape, reading.shape_color, reading.background_color
        return not reading.framed and wanted == found

    return Question(wanted.caption(), right)


def _frame_question(control: Image.Image) -> Question:
    before = read_image(np.asarray(control))

    def right(reading: Reading) -> bool:
        return reading.framed and _same(before, reading, before.shape, before.shape_color)

    return Question(FRAME_EDIT, right, control)


def _edit_question(control: Image.Image, rng: random.Random) -> Question:
    before = read_image(np.asarray(control))
    if rng.random() < 0.5:
        color = rng.choice(
            [name for name in COLORS if name not in {before.shape_color, before.background_color}]
        )
        text, shape = f"make the shape {color}", before.shape
    else:
        shape = rng.choice([name for name in SHAPES if name != before.shape])
        text, color = f"turn the shape into a {shape}", before.shape_color

    def right(reading: Reading) -> bool:
        return not reading.framed and _same(before, reading, shape, color)

    return Question(text, right, control)


def _same(before: Reading, after: Reading, shape: str, color: str) -> bool:
    moved = max(abs(a - b) for a, b in zip(before.center, after.center, strict=True))
    return (
        (after.shape, after.shape_color) == (shape, color)
        and after.background_color == before.background_color
        and moved <= MAXIMUM_SHIFT
    )
