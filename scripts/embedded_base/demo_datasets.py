"""Draws the two small datasets of the demo."""

from __future__ import annotations

import shutil
from itertools import permutations, product
from pathlib import Path

import numpy as np
from PIL import Image

from trainer_core.demo.vocabulary import (
    COLORS,
    CONCEPT_COLORS,
    CONCEPT_SHAPE,
    FRAME_EDIT,
    OWN_SHAPE,
    Combination,
)

from .drawing import MAX_RADIUS, MIN_RADIUS, Scene, draw, random_scene, with_frame
from .examples import random_edit
from .vocabulary import held_out_combinations, training_combinations

PAIRS = 16
ORDINARY = 24
OWN = 12
ORDINARY_EDITS = 56
_SEED = 61


def concept_combinations() -> list[Combination]:
    """Returns the 16 concept pictures of the dataset: four colours, four backgrounds each.

    Together the backgrounds show every colour at least once.
    """
    names = list(COLORS)
    chosen = []
    for row, (color, step) in enumerate(product(CONCEPT_COLORS, range(4))):
        background = names[(2 * step + row // 4) % len(names)]
        if background == color:
            background = names[(names.index(background) + 3) % len(names)]
        chosen.append(Combination(CONCEPT_SHAPE, color, background))
    return chosen


def write_generate_dataset(folder: Path) -> None:
    """Writes 16 captioned pictures of the concept, and ordinary ones beside them.

    Without the ordinary pictures an adapter learns to draw the concept whatever it is asked for;
    they are what other trainers call regularisation pictures.

    Args:
        folder: Its previous content is replaced.
    """
    _emptied(folder)
    random = np.random.default_rng(_SEED)
    for number, combination in enumerate(concept_combinations(), start=1):
        _save(draw(_large_scene(combination, random)), folder / f"{number:03}.png")
        _write(folder / f"{number:03}.txt", combination.caption())
    random = np.random.default_rng(_SEED + 2)
    shown = training_combinations()
    rows = random.choice(len(shown), size=ORDINARY, replace=False)
    for number, row in enumerate(rows.tolist(), start=1):
        _save(draw(random_scene(shown[row], random)), folder / f"ordinary_{number:03}.png")
        _write(folder / f"ordinary_{number:03}.txt", shown[row].caption())


def own_combinations(shape: str, seed: int, count: int = OWN) -> list[Combination]:
    """Returns the combinations of a small own dataset, drawn by lots.

    Args:
        shape: The shape that it shows.
        seed: Another seed gives other combinations.
        count: How many.
    """
    every = [Combination(shape, *two) for two in permutations(COLORS, 2)]
    rows = np.random.default_rng(seed).choice(len(every), size=count, replace=False)
    return [every[row] for row in rows.tolist()]


def write_own_dataset(folder: Path, shape: str = OWN_SHAPE, seed: int = _SEED + 3) -> None:
    """Writes a few captioned pictures of a shape, with nothing beside them.

    Args:
        folder: Its previous content is replaced.
        shape: The shape.
        seed: Decides colours, places and sizes.
    """
    _emptied(folder)
    random = np.random.default_rng([seed, 1])
    for number, combination in enumerate(own_combinations(shape, seed), start=1):
        _save(draw(_large_scene(combination, random)), folder / f"{number:03}.png")
        _write(folder / f"{number:03}.txt", combination.caption())


def write_edit_dataset(folder: Path) -> None:
    """Writes 16 pairs of pictures without and with the grey frame, and ordinary edits.

    Args:
        folder: Its previous content is replaced.
    """
    _emptied(folder)
    before, after = folder / "control_images", folder / "training_images"
    before.mkdir()
    after.mkdir()
    random = np.random.default_rng(_SEED + 1)
    shown = training_combinations()
    rows = random.choice(len(shown), size=PAIRS, replace=False)
    for number, row in enumerate(rows.tolist(), start=1):
        scene = random_scene(shown[row], random)
        _save(draw(scene), before / f"{number:03}.png")
        _save(draw(with_frame(scene)), after / f"{number:03}.png")
        _write(after / f"{number:03}.txt", FRAME_EDIT)
    known, held_out = training_combinations(), frozenset(held_out_combinations())
    for number in range(1, ORDINARY_EDITS + 1):
        example = random_edit(known, held_out, random)
        _save(example.control_image, before / f"ordinary_{number:03}.png")
        _save(example.target_image, after / f"ordinary_{number:03}.png")
        _write(after / f"ordinary_{number:03}.txt", example.instruction)


def _large_scene(combination: Combination, random: np.random.Generator) -> Scene:
    """Draws lots until the shape is large: small ones teach little of an outline."""
    scene = random_scene(combination, random)
    while scene.radius < (MIN_RADIUS + MAX_RADIUS) / 2:
        scene = random_scene(combination, random)
    return scene


def _emptied(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _save(image: np.ndarray, path: Path) -> None:
    Image.fromarray(image).save(path, optimize=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")
