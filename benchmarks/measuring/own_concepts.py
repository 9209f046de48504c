"""Six concepts that neither the embedded base nor a demonstration of the repository has.

Five shapes, twelve images each, and an edit of sixteen pairs: a grey logo in a corner of images.
Shapes are drawn as polygons and read by formulas, so that the reading judges the drawing as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from scripts.embedded_base.demo_datasets import own_combinations
from scripts.embedded_base.drawing import MAX_RADIUS, MIN_RADIUS, Scene, draw, random_scene
from scripts.embedded_base.vocabulary import held_out_combinations, training_combinations
from trainer_core.demo.checker import GRID, Reading, read_image
from trainer_core.demo.exam import Question, base_edit_questions, base_questions
from trainer_core.demo.vocabulary import COLORS, IMAGE_SIZE, Combination

EDIT = "logo"
"""The concept that is an edit; the others are shapes."""

INSTRUCTION = "add a logo"
IMAGES, PAIRS = 12, 16
ASKED = 24
"""Images for each share in the tables, so that one of them is four points."""

_LOGO, _GREY = 12, 128
"""Edge of the logo in pixels, and each of its channels."""

_NEAR, _MOST, _MOVED = 60.0, 0.8, 0.12
_FINE = 4
"""Shapes are drawn so many times larger and averaged down."""


def _heart() -> list[tuple[float, float]]:
    """Two half discs on a triangle."""
    angles = np.linspace(math.pi, 0.0, 24)
    left = [(-0.5 + 0.5 * math.cos(a), -0.45 - 0.5 * math.sin(a)) for a in angles]
    return [*left, *((x + 1.0, y) for x, y in left), (0.0, 1.0)]


_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "arrow": [
        *((0.0, -1.0), (1.0, 0.0), (0.4, 0.0), (0.4, 1.0)),
        *((-0.4, 1.0), (-0.4, 0.0), (-1.0, 0.0)),
    ],
    "heart": _heart(),
    "cup": [
        *((-0.95, -0.95), (-0.43, -0.95), (-0.43, 0.28), (0.43, 0.28)),
        *((0.43, -0.95), (0.95, -0.95), (0.95, 0.95), (-0.95, 0.95)),
    ],
    "table": [
        *((-1.0, -0.85), (1.0, -0.85), (1.0, 0.85), (0.5, 0.85)),
        *((0.5, -0.2), (-0.5, -0.2), (-0.5, 0.85), (-1.0, 0.85)),
    ],
    "hammer": [
        *((-1.0, -0.95), (1.0, -0.95), (1.0, -0.3), (0.3, -0.3)),
        *((0.3, 0.95), (-0.3, 0.95), (-0.3, -0.3), (-1.0, -0.3)),
    ],
}
"""Corners in units of the radius; y points down.

Table and hammer were drawn by lot from eight shapes when the presets were fixed.
"""

SHAPES = tuple(_OUTLINES)
CONCEPTS = (*SHAPES, EDIT)


def outlines() -> dict[str, np.ndarray]:
    """Each shape filling its bounding box, bool `[GRID, GRID]`, as `checker.templates`."""
    centers = (np.arange(GRID) + 0.5) / GRID * 2 - 1
    x, y = np.meshgrid(centers, centers)
    height = 0.975 * y + 0.025  # a heart is 1.95 high and 2 wide
    discs = (np.abs(x) - 0.5) ** 2 + (height + 0.45) ** 2 <= 0.25
    return {
        "arrow": np.where(y <= 0, np.abs(x) <= y + 1, np.abs(x) <= 0.4),
        "heart": discs | ((height >= -0.45) & (np.abs(x) <= (1 - height) / 1.45)),
        "cup": (np.abs(x) >= 0.45) | (y >= 0.3),
        "table": (np.abs(x) >= 0.5) | (y <= -0.235),
        "hammer": (np.abs(x) <= 0.3) | (y <= -0.316),
    }


_READ = outlines()


@dataclass(frozen=True)
class Task:
    """One image to generate, and how it is marked.

    Attributes:
        text: The prompt.
        right: Whether pixels, uint8 `[H, W, 3]`, are a right answer.
        control: The image to edit, or None.
    """

    text: str
    right: Callable[[np.ndarray], bool]
    control: Image.Image | None = None


class Asked(NamedTuple):
    """What an adapter is asked.

    Attributes:
        seen: Combinations, or images to edit, that were trained.
        unseen: Others.
        kept: What the base could do before.
    """

    seen: Sequence[Task]
    unseen: Sequence[Task]
    kept: Sequence[Task]


def prepare(concept: str, seed: int, folder: Path, count: int = ASKED) -> Asked:
    """Write the images of a concept, where they are not there yet, and say what is asked.

    Args:
        concept: One of `CONCEPTS`.
        seed: Another one gives other images and questions.
        folder: Of the images.
        count: Images that are asked for each share.
    """
    if concept == EDIT:
        return _edit(folder, seed, count)
    return _shape(concept, folder, seed, count)


def paint(shape: str, scene: Scene) -> np.ndarray:
    """Draw one of `SHAPES` where a scene says, uint8 `[64, 64, 3]`."""
    edge = IMAGE_SIZE * _FINE
    image = Image.new("RGB", (edge, edge), scene.background)
    x, y = scene.center
    corners = [
        (_FINE * (x + scene.radius * dx), _FINE * (y + scene.radius * dy))
        for dx, dy in _OUTLINES[shape]
    ]
    ImageDraw.Draw(image).polygon(corners, fill=scene.color)
    return np.asarray(image.reduce(_FINE), dtype=np.uint8)


def with_logo(pixels: np.ndarray) -> np.ndarray:
    """The same image with the grey logo in its upper left corner."""
    marked = pixels.copy()
    marked[:_LOGO, :_LOGO] = _GREY
    return marked


def read(pixels: np.ndarray) -> Reading:
    """What an image shows, the own shapes among it."""
    return read_image(pixels, _READ)


def has_logo(pixels: np.ndarray) -> bool:
    """Whether nearly all of the upper left corner is grey, and no other corner is."""

    def grey(corner: np.ndarray) -> bool:
        far = np.linalg.norm(corner.reshape(-1, 3).astype(float) - _GREY, axis=1)
        return bool((far < _NEAR).mean() >= _MOST)

    inner = _LOGO - 2
    first, *others = (
        turned[:inner, :inner]
        for turned in (pixels, pixels[:, ::-1], pixels[::-1], pixels[::-1, ::-1])
    )
    return grey(first) and not any(grey(each) for each in others)


def without_logo(pixels: np.ndarray) -> np.ndarray:
    """The same image with the background's colour in its upper left corner."""
    edges = np.concatenate([pixels[-1], pixels[:, -1], pixels[_LOGO + 2 :, 0]])
    plain = pixels.copy()
    plain[: _LOGO + 2, : _LOGO + 2] = np.median(edges, axis=0)
    return plain


def _shape(shape: str, folder: Path, seed: int, count: int) -> Asked:
    shown = own_combinations(shape, seed, IMAGES)
    random = np.random.default_rng([seed, 1])
    for number, combination in enumerate(shown):
        scene = random_scene(combination, random)
        # Small shapes teach little of an outline, as in the demonstrations.
        while scene.radius < (MIN_RADIUS + MAX_RADIUS) / 2:
            scene = random_scene(combination, random)
        _save(paint(shape, scene), folder, f"{number:03}", combination.caption())
    every = [Combination(shape, *two) for two in itertools.permutations(COLORS, 2)]
    fresh = [each for each in every if each not in set(shown)]
    rows = np.random.default_rng(seed).permutation(len(fresh))[:count].tolist()
    return Asked(
        seen=[_shows(each) for each in (shown * 2)[:count]],
        unseen=[_shows(fresh[row]) for row in rows],
        kept=_tasks(base_questions(count, seed)),
    )


def _edit(folder: Path, seed: int, count: int) -> Asked:
    random = np.random.default_rng([seed, 2])
    known, others = training_combinations(), held_out_combinations()
    shown = []
    for row in random.choice(len(known), size=PAIRS, replace=False).tolist():
        before = draw(random_scene(known[row], random))
        _save(with_logo(before), folder / "training_images", f"{row:03}", INSTRUCTION)
        _save(before, folder / "control_images", f"{row:03}")
        shown.append(before)
    fresh = [draw(random_scene(others[i % len(others)], random)) for i in range(2 * count)]
    controls = [Image.fromarray(each) for each in fresh[count:]]
    return Asked(
        seen=[_marked(each) for each in (shown * 2)[:count]],
        unseen=[_marked(each) for each in fresh[:count]],
        kept=_tasks(base_edit_questions(controls, seed)),
    )


def _shows(wanted: Combination) -> Task:
    def right(pixels: np.ndarray) -> bool:
        seen = read(pixels)
        found = (seen.shape, seen.shape_color, seen.background_color)
        return not seen.framed and wanted == found

    return Task(wanted.caption(), right)


def _marked(before: np.ndarray) -> Task:
    """The logo is asked for, with all else as it was."""
    wanted = read(before)

    def right(pixels: np.ndarray) -> bool:
        seen = read(without_logo(pixels))
        same = (seen.shape, seen.shape_color, seen.background_color) == (
            *(wanted.shape, wanted.shape_color, wanted.background_color),
        )
        moved = max(abs(a - b) for a, b in zip(wanted.center, seen.center, strict=True))
        return has_logo(pixels) and not seen.framed and same and moved <= _MOVED

    return Task(INSTRUCTION, right, Image.fromarray(before))


def _tasks(questions: Sequence[Question]) -> list[Task]:
    """A logo that nobody asked for is wrong, as a frame is."""

    def task(asked: Question) -> Task:
        def right(pixels: np.ndarray) -> bool:
            return asked.right(read(pixels)) and not has_logo(pixels)

        return Task(asked.text, right, asked.control)

    return [task(question) for question in questions]


def _save(image: np.ndarray, folder: Path, name: str, caption: str | None = None) -> None:
    path = folder / f"{name}.png"
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    if caption is not None:
        (folder / f"{name}.txt").write_text(caption + "\n", encoding="utf-8")
