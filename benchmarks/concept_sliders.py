"""Trains a slider from blue to red on the embedded base, and measures what its strength does.

The tiny template, without images and without preservation; neutral is one purple circle. Measured
are images of that prompt and of others, with other shapes and backgrounds, that were not trained.
`--slider several` trains four shapes on four backgrounds, of prompts that name no colour; `one` the
first of these alone.
Run: ``python -m benchmarks.concept_sliders``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measuring.record import origin, write_record
from trainer_core.config import RunConfig
from trainer_core.data.image import from_pixels
from trainer_core.demo.checker import read_image
from trainer_core.demo.run import sample_settings
from trainer_core.families.run_files import load_config, template_config
from trainer_core.inference.pipeline import open_pipeline
from trainer_core.training import train

SEEDS = (1, 2, 3)
STRENGTHS = (-2.0, -1.0, 0.0, 1.0, 2.0)
NEUTRAL = "a purple circle on a white background"
POSITIVE, NEGATIVE = (NEUTRAL.replace("purple", color) for color in ("red", "blue"))
OTHERS = (
    "a purple square on a white background",
    "a purple triangle on a black background",
    "a purple circle on a green background",
    "a purple cross on a yellow background",
)
_RED_OR_BLUE = {"positive": "a red {}", "negative": "a blue {}"}
# Of the others, those on white and black have a background that one of several prompts has too.
_SEVERAL = (
    "circle on a white background",
    "square on a black background",
    "triangle on an orange background",
    "cross on a purple background",
)
SLIDERS: dict[str, dict[str, Any]] = {
    "purple": {"positive": POSITIVE, "negative": NEGATIVE, "neutral": [NEUTRAL]},
    "one": {**_RED_OR_BLUE, "neutral": list(_SEVERAL[:1])},
    "several": {**_RED_OR_BLUE, "neutral": list(_SEVERAL)},
}
"""Of one prompt that names a colour; of one that names none, and of several such."""
_IMAGES = 8
_IMAGE_SEED = 1_000_000
_SHAPE_DIFFERS = 60.0
_MOVED = 0.12
_APART = 0.1


def slider_config(name: str, seed: int, overrides: Sequence[str], folder: Path) -> RunConfig:
    """The run file: the tiny template with one of `SLIDERS` in the place of images."""
    preset = template_config("qwen_image", "tiny").model_dump(mode="json")
    preset["dataset"] = {"resolution": 64, "slider": SLIDERS[name]}
    own = [f"seed={seed}", f"output.dir={folder / 'runs'}", f"cache.dir={folder / 'cache'}"]
    return load_config(preset, [*own, f"output.name=slider-{name}-{seed}", *overrides])


def measure(name: str, seed: int, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train a slider and measure its images.

    Args:
        name: Which of `SLIDERS`.
        seed: Of the run.
        overrides: Further settings, ``key=value``.
        folder: For everything that is written; a sheet of each as well.

    Returns:
        For the purple circle on white and for others: how red minus blue the shape is at each
        strength, in [-1, 1]; the share of images that are ordered at -1, 0 and 1; and, at -1 and 1,
        the share whose shape, background and place are those of strength 0, and what all but the
        shape has changed by, in [0, 1], with that of each prompt, at -2 and 2 as well.
    """
    config = slider_config(name, seed, overrides, folder)
    started = time.process_time()
    result = train(config)
    facts: dict[str, Any] = {"slider": name, "seed": seed, "steps": result.step}
    facts["cpu_seconds"] = round(time.process_time() - started, 1)
    with open_pipeline(config, has_controls=False) as pipeline:
        adapter = pipeline.put_on(result.adapters[0])
        for group, prompts in {"trained": (NEUTRAL,), "others": OTHERS}.items():
            asked = [
                pipeline.request(text, _IMAGE_SEED + number)
                for text in prompts
                for number in range(_IMAGES // len(prompts))
            ]
            images: dict[float, list[np.ndarray]] = {}
            for strength in STRENGTHS:
                adapter.strength = strength
                pixels = pipeline.sample(asked, sample_settings(config))
                images[strength] = [np.asarray(from_pixels(each)) for each in pixels]
            facts[group] = _told(images, len(prompts))
            _write_sheet(folder / f"{name}-{group}-{seed}.png", images)
    return facts


def _told(images: dict[float, list[np.ndarray]], prompts: int) -> dict[str, Any]:
    """What is measured of images, of which as many follow each other for each prompt."""
    plain = images[0.0]
    shapes = [_shape(each) for each in plain]
    red = {
        strength: [_redness(*each) for each in zip(row, shapes, strict=True)]
        for strength, row in images.items()
    }
    ordered = [
        low + _APART < middle < high - _APART
        for low, middle, high in zip(red[-1.0], red[0.0], red[1.0], strict=True)
    ]
    both, twice = (
        [
            (before, after, shape)
            for side in (-strength, strength)
            for before, after, shape in zip(plain, images[side], shapes, strict=True)
        ]
        for strength in (1.0, 2.0)
    )
    # Strengths 1 and 2, both signs, prompts, images of each.
    rest = np.reshape([_rest(*each) for each in (*both, *twice)], (2, 2, prompts, -1))
    return {
        "red": {f"{strength:g}": round(float(np.mean(row)), 3) for strength, row in red.items()},
        "ordered": round(float(np.mean(ordered)), 3),
        "same": round(float(np.mean([_is_same(before, after) for before, after, _ in both])), 3),
        "rest": round(float(rest[0].mean()), 4),
        "rest_each": rest[0].mean(axis=(0, 2)).round(4).tolist(),
        "rest_at_2": rest[1].mean(axis=(0, 2)).round(4).tolist(),
    }


def _shape(image: np.ndarray) -> np.ndarray:
    """Which pixels are not background, ``[H, W]``."""
    values = image.astype(np.float64)
    border = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])
    return np.linalg.norm(values - np.median(border, axis=0), axis=2) > _SHAPE_DIFFERS


def _redness(image: np.ndarray, shape: np.ndarray) -> float:
    inside = image[shape].astype(np.float64)
    return float((inside[:, 0] - inside[:, 2]).mean() / 255) if len(inside) else 0.0


def _rest(before: np.ndarray, after: np.ndarray, shape: np.ndarray) -> float:
    change = np.abs(before.astype(np.float64) - after.astype(np.float64)).mean(axis=2)
    return float(change[~shape].mean() / 255)


def _is_same(before: np.ndarray, after: np.ndarray) -> bool:
    one, other = read_image(before), read_image(after)
    moved = max(abs(a - b) for a, b in zip(one.center, other.center, strict=True))
    same = (one.shape, one.background_color) == (other.shape, other.background_color)
    return same and moved <= _MOVED


def _write_sheet(path: Path, images: dict[float, list[np.ndarray]]) -> None:
    """A row for each image, a column for each strength."""
    rows = zip(*images.values(), strict=True)
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in rows])
    Image.fromarray(sheet).resize((2 * sheet.shape[1], 2 * sheet.shape[0])).save(path)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--folder", type=Path, help="keep runs and pictures there")
    parser.add_argument("--slider", choices=list(SLIDERS), default="purple")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--set", nargs="*", default=[], help="further settings, key=value")
    given = parser.parse_args()
    rows, measured = [], origin()
    with tempfile.TemporaryDirectory() as temporary:
        for seed in given.seeds:
            row = measure(given.slider, seed, given.set, given.folder or Path(temporary))
            rows.append({"set": given.set, **row})
            print(json.dumps(rows[-1]), flush=True)
    if given.output:
        write_record(
            given.output, {"benchmark": "concept_sliders", "measured": measured, "rows": rows}
        )


if __name__ == "__main__":
    main()
