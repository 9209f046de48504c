"""How many products a concept takes: routing and draws that cancel, each alone and both.

A run of each `WAYS`, kind, concept and seed on the embedded base, at a constant rate of a sixth of
the preset's, so that steps to 80 % can be told apart. Its adapter is kept every `EVERY` steps. By
bisection the first of them is found that gets 80 % of the seen combinations right; what it gets
right of the others is measured. The loss of the trained images at levels and noises that no run
drew is measured too: it is without the chance of 24 images. Products are counted over a few steps.

Each row is written at once, and one that is in the file is not measured again.
Run: ``python -m benchmarks.products_to_learn --output benchmarks/results/products_to_learn.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_core.config import RunConfig
from trainer_core.inference.pipeline import Pipeline, open_pipeline
from trainer_core.training import train
from trainer_core.training.observer import CheckpointSaved, Event, SilentObserver

from .learning import KINDS, REACHED, Way, config_for, right_share
from .measuring.counters import Products
from .measuring.own_concepts import IMAGES, SHAPES, Asked, Task, prepare
from .measuring.plain_loop import train_plainly
from .measuring.record import origin, read_record, write_record
from .stratified_draws import Images, fixed_loss

CONCEPTS, SEEDS = SHAPES[1:], (61, 62, 63)
"""Without the arrow, of which no run got 80 % in as few steps."""

STEPS, EVERY, LOSS_EVERY = 96, 3, 12
PLAIN_STEPS = 192
"""Of the plain loop, which is the slower one: what it needs is known, not only that it is more."""

_FEW = (2, 6)
"""Products are counted between these steps."""

_COMMON = {
    "training.steps": STEPS,
    "training.checkpoint_every": EVERY,
    "training.keep_every": EVERY,
    "training.schedule.name": "constant",
    "training.schedule.warmup_steps": 0,
}
_PACE = 1 / 6
ROUTING = {"share": 0.5, "first": 1, "last": 1}
"""Three of the five blocks compute half of the 16 tokens."""

_ALL_OWN = {"dataset.preservation.share": 0.0, "training.batch_size": IMAGES}
"""A batch has each image once; with preserved samples there are a third more of those."""


def _preserved(samples: int) -> dict[str, Any]:
    """So many preserved samples a batch beside the own ones, of which the preset has four."""
    return {
        "dataset.preservation.share": samples / (IMAGES + samples),
        "training.batch_size": IMAGES + samples,
    }


_INDEPENDENT = {"training.sigma.stratified": False}
_ROUTED = {f"training.routing.{name}": each for name, each in ROUTING.items()}
PLAIN, NEITHER = "plain loop", "neither"
SEVENTH = "draws that cancel, a seventh preserved"
THIRTEENTH = "draws that cancel, a thirteenth preserved"
WAYS: dict[str, dict[str, Any]] = {
    PLAIN: _ALL_OWN,
    NEITHER: {**_ALL_OWN, **_INDEPENDENT},
    "routing": {**_ALL_OWN, **_INDEPENDENT, **_ROUTED},
    "draws that cancel": _ALL_OWN,
    "both": {**_ALL_OWN, **_ROUTED},
    "draws that cancel, a quarter preserved": {},
    SEVENTH: _preserved(2),
    THIRTEENTH: _preserved(1),
}
"""Settings that differ from the preset's. Routing refuses preserved samples."""

_LORA_ONLY = {PLAIN, SEVENTH, THIRTEENTH}
"""Diffusers' own loop is PEFT's LoRA; shares are compared with one kind."""

_FIRST_SEED_ONLY = {way for way in WAYS if "training.routing.share" in WAYS[way]}
"""No routed run was right in time with the first seed."""


class _Kept(SilentObserver):
    """The adapters of a run, by step."""

    def __init__(self) -> None:
        self.adapters: dict[int, Path] = {}

    def notify(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            self.adapters[event.step] = event.folder / "adapter.safetensors"


def runs() -> Iterator[tuple[str, str, str, int]]:
    """Way, kind, concept and seed of each.

    Those of a seed that matter most come first: one concept with all kinds, one kind with all.
    """
    every = [
        run
        for run in itertools.product(WAYS, KINDS, CONCEPTS, SEEDS)
        if (run[0] not in _LORA_ONLY or run[1] == KINDS[0])
        and (run[0] not in _FIRST_SEED_ONLY or run[3] == SEEDS[0])
    ]
    places = {name: at for at, name in enumerate((*WAYS, *KINDS, *CONCEPTS))}

    def order(run: tuple[str, str, str, int]) -> tuple[int, bool, int, int, int]:
        way, kind, concept, seed = run
        later = kind != KINDS[0] and concept != CONCEPTS[0]
        return seed, later, places[concept], places[kind], places[way]

    return iter(sorted(every, key=order))


def measure(way: str, kind: str, concept: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run: when it is right, what is right then, and its loss by step."""
    images = folder / f"{concept}-{seed}"
    asked = prepare(concept, seed, images)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        length = PLAIN_STEPS if way == PLAIN else STEPS
        config = _config(way, kind, concept, seed, images, Path(place), length)
        adapters = _train(config, way == PLAIN, Path(place))
        with open_pipeline(config, has_controls=False) as pipeline:
            row = _reached(pipeline, config, adapters, asked)
            shown = Images(pipeline, images)
            losses: dict[int, float] = {}
            for step in range(LOSS_EVERY, STEPS + 1, LOSS_EVERY):
                attached = pipeline.put_on(adapters[step])
                losses[step] = round(fixed_loss(pipeline, shown), 5)
                attached.detach()
    names = {"way": way, "kind": kind, "concept": concept, "seed": seed, "steps": length}
    return names | row | {"loss": losses}


def products_of_step(way: str, kind: str, folder: Path) -> float:
    """The FLOPs of a step's products, mean of a few steps."""
    concept, seed = CONCEPTS[0], SEEDS[0]
    images = folder / f"{concept}-{seed}"
    prepare(concept, seed, images)
    counts = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for steps in _FEW:
            config = _config(way, kind, concept, seed, images, Path(place), steps)
            _train(config, way == PLAIN, Path(place))  # encodes
            with Products() as products:
                _train(config, way == PLAIN, Path(place))
            counts.append(products.flops)
    return (counts[1] - counts[0]) / (_FEW[1] - _FEW[0])


def _config(
    way: str, kind: str, concept: str, seed: int, images: Path, place: Path, steps: int
) -> RunConfig:
    changed = {**_COMMON, **WAYS[way], "training.steps": steps}
    return config_for(Way(way, kind, changed, pace=_PACE), concept, seed, images, place)


def _train(config: RunConfig, plainly: bool, place: Path) -> dict[int, Path]:
    if plainly:
        marks = train_plainly(config, config.training.steps or STEPS, EVERY, place)
        return {mark.step: mark.adapter for mark in marks}
    kept = _Kept()
    train(config, kept)
    return kept.adapters


def _reached(
    pipeline: Pipeline, config: RunConfig, adapters: Mapping[int, Path], asked: Asked
) -> dict[str, Any]:
    """The first adapter that gets enough right, as if none behind it got less; None where none."""
    steps = sorted(adapters)
    low, high = 0, len(steps)
    shares: dict[int, float] = {}
    while low < high:
        middle = (low + high) // 2
        shares[middle] = _right(pipeline, config, adapters[steps[middle]], asked.seen)[0]
        low, high = (low, middle) if shares[middle] >= REACHED else (middle + 1, high)
    found = min(low, len(steps) - 1)
    others = _right(pipeline, config, adapters[steps[found]], asked.unseen, asked.kept)
    row: dict[str, Any] = {"reached": steps[low] if low < len(steps) else None}
    return row | {"seen": shares[found], "unseen": others[0], "kept": others[1]}


def _right(
    pipeline: Pipeline, config: RunConfig, adapter: Path, *asked: Sequence[Task]
) -> list[float]:
    attached = pipeline.put_on(adapter)
    shares = [right_share(pipeline, config, tasks) for tasks in asked]
    attached.detach()
    return shares


def main() -> None:
    """Measure what is missing, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    record = read_record(output)
    rows, sessions = record.get("rows", []), [*record.get("sessions", []), origin()]
    products = record.get("products", {})
    known = {(row["way"], row["kind"], row["concept"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for run in runs():
            way, kind, *_ = run
            if f"{way}, {kind}" not in products:
                products[f"{way}, {kind}"] = round(products_of_step(way, kind, Path(folder)))
            if run in known:
                continue
            rows.append(measure(*run, Path(folder)) | {"session": len(sessions) - 1})
            print(json.dumps(rows[-1]), flush=True)
            content = {"benchmark": "products_to_learn", "sessions": sessions}
            write_record(output, content | {"products": products, "rows": rows})


if __name__ == "__main__":
    main()
