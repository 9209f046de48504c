"""Draws the two small datasets of the demo."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from trainer_core.demo.vocabulary import (
    COLORS,
    CONCEPT_COLORS,
    CONCEPT_SHAPE,
    FRAME_EDIT,
    Combination,
    training_combinations,
)

from .drawing import draw, random_scene, with_frame

PAIRS = 16
_SEED = 61


def concept_combinations() -> list[Combination]:
    """Returns the 16 stars of the dataset: four colours, four backgrounds each.

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
    """Writes 16 captioned pictures of the concept.

    Args:
        folder: Its previous content is replaced.
    """
    _emptied(folder)
    random = np.random.default_rng(_SEED)
    for number, combination in enumerate(concept_combinations(), start=1):
        _save(draw(random_scene(combination, random)), folder / f"{number:03}.png")
        _write(folder / f"{number:03}.txt", combination.caption())


def write_edit_dataset(folder: Path) -> None:
    """Writes 16 pairs of pictures without and with the grey frame.

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


def _emptied(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _save(picture: np.ndarray, path: Path) -> None:
    Image.fromarray(picture).save(path, optimize=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")
