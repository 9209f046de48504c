"""Trains a style on the embedded base by presets; of objects and edits see `benchmarks.learning`.

A style is 24 ordinary images that all have a grey frame, with captions that do not name it: learned
is what has a grey border and shows what is asked for inside it, kept what shows it there, whatever
the border is. The seeds decide datasets, runs and questions; no figure of a preset was tuned on
them. Run: ``python -m benchmarks.presets``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measuring.own_concepts import Task
from benchmarks.measuring.record import origin, write_record
from scripts.embedded_base.drawing import draw, random_scene, with_frame
from scripts.embedded_base.vocabulary import held_out_combinations, training_combinations
from trainer_core.config import RunConfig
from trainer_core.data.image import from_pixels
from trainer_core.demo.checker import read_image
from trainer_core.demo.run import sample_settings
from trainer_core.demo.vocabulary import Combination
from trainer_core.families.presets import plan_preset
from trainer_core.families.registry import embedded_family
from trainer_core.families.run_files import config_of
from trainer_core.inference.pipeline import Pipeline, open_pipeline
from trainer_core.training import train

BASE = "none"
"""In the place of a quality: nothing is trained, and the base alone is asked."""

WAYS = ((BASE, "auto"), ("fast", "auto"), ("standard", "auto"), ("standard", "lora"))
GOAL = "style"
SEEDS = (21, 22)

_ASKED = _IMAGES = 24
_IMAGE_SEED = 2_000_000
_BORDER = 4
"""Pixels on each side that are grey in the style; what is asked for is read inside twice that."""

_GREY, _NEAR, _MOST = 128, 60.0, 0.8


Asked = tuple[list[Task], list[Task]]


def measure(quality: str, kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train by a preset and mark what the adapter generates.

    Args:
        quality: Of the preset, or `BASE`.
        kind: Of the adapter.
        seed: Of the images, of the run and of the questions.
        folder: For everything that is written.

    Returns:
        Shares of right images: of what was trained for (``learned``), of what the base could do
        before (``kept``); steps; CPU seconds of the run.
    """
    images = folder / GOAL
    asked = _style(images, seed)
    preset = plan_preset(
        embedded_family().name,
        GOAL,
        "standard" if quality == BASE else quality,
        images=_IMAGES,
        kind=kind,
        embedded=True,
    )
    values = {**preset.values, "dataset.path": str(images), "output.dir": str(folder / "runs")}
    config = config_of({**values, "seed": seed, "memory.device": "cpu"})
    facts = {"goal": GOAL, "quality": quality, "kind": config.adapter.kind, "seed": seed}
    adapter: Path | None = None
    if quality != BASE:
        started = time.process_time()
        result = train(config)
        seconds = round(time.process_time() - started, 1)
        facts |= {"steps": result.step, "cpu_seconds": seconds}
        adapter = result.adapters[0]
    with open_pipeline(config, has_controls=False) as pipeline:
        if adapter is not None:
            pipeline.put_on(adapter)
        learned, kept = (_share(pipeline, config, questions) for questions in asked)
    return facts | {"learned": learned, "kept": kept}


def _share(pipeline: Pipeline, config: RunConfig, tasks: list[Task]) -> float:
    """Of right images; generated as previews are."""
    requests = [pipeline.request(task.text, _IMAGE_SEED + i) for i, task in enumerate(tasks)]
    images = pipeline.sample(requests, sample_settings(config))
    right = [
        task.right(np.asarray(from_pixels(image)))
        for task, image in zip(tasks, images, strict=True)
    ]
    return round(sum(right) / len(right), 3)


def _style(folder: Path, seed: int) -> Asked:
    """Ordinary images in the frame; asked are combinations that nothing was trained on."""
    random = np.random.default_rng(seed)
    shown = training_combinations()
    for row in random.choice(len(shown), size=_IMAGES, replace=False).tolist():
        scene = with_frame(random_scene(shown[row], random))
        _save(draw(scene), folder, f"{row:03}", shown[row].caption())
    fresh = list(held_out_combinations())
    asked = [fresh[row] for row in random.permutation(len(fresh))[:_ASKED].tolist()]
    learned = [_shows(each, styled=True) for each in asked]
    return learned, [_shows(each, styled=False) for each in asked]


def _shows(wanted: Combination, *, styled: bool) -> Task:
    def right(pixels: np.ndarray) -> bool:
        inner = pixels[2 * _BORDER : -2 * _BORDER, 2 * _BORDER : -2 * _BORDER]
        seen = read_image(inner)
        same = wanted == (seen.shape, seen.shape_color, seen.background_color)
        return same and (_has_border(pixels) or not styled)

    return Task(wanted.caption(), right)


def _has_border(pixels: np.ndarray) -> bool:
    """Whether nearly all of the outermost pixels are grey."""
    outer = np.ones(pixels.shape[:2], dtype=bool)
    outer[_BORDER:-_BORDER, _BORDER:-_BORDER] = False
    far = np.linalg.norm(pixels[outer].astype(float) - _GREY, axis=1)
    return bool((far < _NEAR).mean() >= _MOST)


def _save(image: np.ndarray, folder: Path, name: str, caption: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(folder / f"{name}.png")
    (folder / f"{name}.txt").write_text(caption + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--qualities", nargs="*", default=[quality for quality, _ in WAYS])
    given = parser.parse_args(words)
    rows, measured = [], origin()
    for seed, (quality, kind) in itertools.product(given.seeds, WAYS):
        if quality not in given.qualities:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(quality, kind, seed, Path(folder)))
        print(json.dumps(rows[-1]), flush=True)
        if given.output:
            record = {"benchmark": "presets", "measured": measured, "rows": rows}
            write_record(given.output, record)


if __name__ == "__main__":
    main()
