"""Trains the tiny template on a few images of an own shape, and measures what is kept.

Three shapes that the base cannot generate, twelve images each, nothing beside them; three seeds,
none of which the template was tuned on. Nothing of the template changes but the path. The second
row of each is the same without preservation. Run: ``python -m benchmarks.own_images``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring.record import origin, write_record
from scripts.embedded_base.demo_datasets import own_combinations, write_own_dataset
from trainer_core.config import RunConfig
from trainer_core.data.captions.rules import with_trigger
from trainer_core.data.image import from_pixels
from trainer_core.demo.exam import Question, base_questions, combination_questions, mark
from trainer_core.demo.run import sample_settings
from trainer_core.demo.vocabulary import COLORS, Combination
from trainer_core.families.run_files import load_config, template_config
from trainer_core.inference.pipeline import Pipeline, open_pipeline
from trainer_core.training import train

SHAPES = ("diamond", "corner", "house")
SEEDS = (1, 2, 3)
BARS = {"seen": 0.8, "unseen": 0.6, "kept": 0.8}
_ASKED = 24
_KEPT = 50
_IMAGE_SEED = 1_000_000


def measure(shape: str, seed: int, overrides: list[str], folder: Path) -> dict[str, Any]:
    """Train on twelve images of a shape and mark what the adapter generates.

    Args:
        shape: The shape; the base was never shown it.
        seed: Of the images and of the run.
        overrides: Further settings, ``key=value``.
        folder: For everything that is written.

    Returns:
        Shares of right images: of combinations that were trained, of others, of what the base
        could generate before; steps; CPU seconds of the run.
    """
    images = folder / f"{shape}-{seed}"
    if not images.is_dir():
        write_own_dataset(images, shape, seed)
    preset = template_config("qwen_image", "tiny").model_dump(mode="json")
    given = [f"dataset.path={images}", f"seed={seed}", f"output.dir={folder / 'runs'}"]
    config = load_config(preset, [*given, f"output.name={shape}-{seed}", *overrides])
    started = time.process_time()
    result = train(config)
    seconds = time.process_time() - started
    trained = own_combinations(shape, seed)
    every = [Combination(shape, *two) for two in _pairs()]
    fresh = [each for each in every if each not in set(trained)]
    rows = np.random.default_rng(seed).permutation(len(fresh))[:_ASKED]
    questions = {
        "seen": combination_questions((trained * 2)[:_ASKED]),
        "unseen": combination_questions([fresh[row] for row in rows]),
        "kept": base_questions(_KEPT, _IMAGE_SEED),
    }
    trigger = config.dataset.trigger_word
    with open_pipeline(config, has_controls=False) as pipeline:
        pipeline.put_on(result.adapters[0])
        shares = {
            name: _share(pipeline, config, asked, "" if name == "kept" else trigger)
            for name, asked in questions.items()
        }
    facts = {"shape": shape, "seed": seed, "steps": result.step, "cpu_seconds": round(seconds, 1)}
    return facts | {name: round(share, 3) for name, share in shares.items()}


def _pairs() -> list[tuple[str, str]]:
    return [(one, other) for one in COLORS for other in COLORS if one != other]


def _share(pipeline: Pipeline, config: RunConfig, questions: list[Question], trigger: str) -> float:
    texts = [with_trigger(trigger, question.text) for question in questions]
    asked = [pipeline.request(text, _IMAGE_SEED + i) for i, text in enumerate(texts)]
    images = pipeline.sample(asked, sample_settings(config))
    return mark(questions, [np.asarray(from_pixels(image)) for image in images])


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--without", action="store_true", help="also without preservation")
    parser.add_argument("--set", nargs="*", default=[], help="further settings, key=value")
    given = parser.parse_args()
    ways = {"template": list(given.set)}
    if given.without:
        ways["without preservation"] = [
            "dataset.preservation.share=0",
            "dataset.preservation.prompts=[]",
        ]
    rows, measured = [], origin()
    with tempfile.TemporaryDirectory() as folder:
        for way, overrides in ways.items():
            for shape in given.shapes:
                for seed in given.seeds:
                    row = {"way": way, **measure(shape, seed, overrides, Path(folder))}
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    if given.output:
        record = {"benchmark": "own_images", "bars": BARS, "measured": measured, "rows": rows}
        write_record(given.output, record)


if __name__ == "__main__":
    main()
