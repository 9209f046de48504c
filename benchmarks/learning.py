"""What runs with default settings learn and keep, and what one changed setting makes of it.

Six concepts that neither the embedded base nor a demonstration has (`measuring.own_concepts`),
presets of quality ``standard``, and seeds that no figure was tuned on. The rows `DEFAULTS` and
`EARLIER` are measured of every concept, all others of one, with one setting changed. Each row is
written at once, and a row that is in the file is not measured again: the benchmark may be stopped
at any time.
Run: ``python -m benchmarks.learning --output benchmarks/results/learning.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainer_core.config import RunConfig
from trainer_core.config.defaults import run_length
from trainer_core.config.optimizer import FINDS_ITS_RATE, OWN_DEFAULTS
from trainer_core.data.captions.rules import with_trigger
from trainer_core.data.image import from_pixels
from trainer_core.demo.run import sample_settings
from trainer_core.families.presets import plan_preset
from trainer_core.families.registry import embedded_family
from trainer_core.families.run_files import config_of
from trainer_core.inference.pipeline import Pipeline, open_pipeline
from trainer_core.training import train
from trainer_core.training.observer import CheckpointSaved, Event, RunStarted, SilentObserver

from .measuring.own_concepts import (
    ASKED,
    CONCEPTS,
    EDIT,
    IMAGES,
    PAIRS,
    SHAPES,
    Asked,
    Task,
    prepare,
)
from .measuring.plain_loop import Mark, train_plainly
from .measuring.record import origin, read_record, write_record

SEEDS = (31, 32, 33)
KINDS = ("lora", "lokr", "loha")
BARS = {"seen": 0.88, "unseen": 0.75, "kept": 0.88}
REACHED = 0.8
"""Share of seen combinations; how soon it is reached is measured."""

EVERY = 10
"""Steps between the adapters that are asked for it."""

CHANGED_CONCEPT = PACED_CONCEPT = SHAPES[1]
"""What rows with a changed setting, and those of the pace, are measured of."""

CLASS_WORD = "square"
_IMAGE_SEED = 3_000_000
_RATE = "training.optimizer.learning_rate"
_ADAMW_RATE = 1e-4
_KEEP = "dataset.preservation"
_WARM_UP = "training.schedule.warmup_steps"
_DENSITY = "training.sigma.density"
_CONSTANT = {"training.schedule.name": "constant"}
_EMA = {"training.ema.decay": 0.95}
_NOTHING = {f"{_KEEP}.share": 0.0}

_COUNT = f"{_KEEP}.count"
HALF = {f"{_KEEP}.share": 0.5, _COUNT: 24, _RATE: 0.003, _WARM_UP: 20, "training.steps": 200}
"""The first preset of an object with a LoRA: rows with one change are changed from this."""

QUARTER = {**HALF, f"{_KEEP}.share": 0.25, _RATE: 0.005, _WARM_UP: 10, "training.steps": 130}
"""Its second preset, and a LoHa's."""


@dataclass(frozen=True)
class Way:
    """How a row's runs are made.

    Attributes:
        name: Of the row.
        kind: Of the adapter.
        changed: Settings that are not as the preset or `base` has them, by YAML path.
        paced: Whether it is measured when `REACHED` is reached.
        plain: Whether the plain loop of Diffusers and PEFT trains.
        pace: Factor on the learning rate.
        base: Settings in the place of the preset's, before anything is changed.
    """

    name: str
    kind: str = "lora"
    changed: Mapping[str, Any] = field(default_factory=dict)
    paced: bool = False
    plain: bool = False
    pace: float = 1.0
    base: Mapping[str, Any] = field(default_factory=dict)


def _optimizer(name: str) -> Way:
    """An optimizer with its own defaults; its rate is in the same ratio to AdamW's as there."""
    own = OWN_DEFAULTS.get(name, {}).get("learning_rate", _ADAMW_RATE)
    changed: dict[str, Any] = {"training.optimizer.name": name}
    if name in FINDS_ITS_RATE:
        return _from_half(name, {**changed, _RATE: own, **_schedule(name)})
    return _from_half(name, {**changed, **_schedule(name)}, pace=own / _ADAMW_RATE)


def _from_half(name: str, changed: Mapping[str, Any], **more: Any) -> Way:
    """A LoRA that is changed from `HALF`."""
    return Way(name, changed=changed, base=HALF, **more)


def _schedule(name: str) -> Mapping[str, Any]:
    return _CONSTANT if name.endswith("schedule_free") else {}


OPTIMIZERS = (
    *("lion", "adafactor", "prodigy", "came", "muon", "sgd", "adamw_schedule_free"),
    *("prodigy_schedule_free", "adamw8bit", "lion8bit"),
)
"""Those that compute on a CPU as anywhere; paged ones are the same there."""

DEFAULTS = tuple(Way(kind, kind) for kind in KINDS)
EARLIER = (
    Way("lora", base=QUARTER),
    Way("lokr", "lokr", base={**HALF, _RATE: 0.01, "adapter.factor": 4}),
    Way("loha", "loha", base=QUARTER),
)
"""What the presets of an object were before."""


def _whole(factor: int, pace: float = 1.0) -> Way:
    """A LoKr whose second factor is not a low-rank product."""
    changed = {"adapter.factor": factor, "adapter.full_matrix": True}
    rate = "" if pace == 1.0 else f", {pace:g} times the rate"
    return Way(f"lokr, factor {factor}, whole{rate}", "lokr", changed, paced=True, pace=pace)


PACED = (
    Way("plain loop", paced=True, plain=True, base=HALF),
    Way("lora", paced=True),
    *(replace(way, name=f"{way.name}, the preset before", paced=True) for way in EARLIER),
    _from_half("lora, half preserved", {}, paced=True),
    _from_half("lora, a quarter preserved", {f"{_KEEP}.share": 0.25}, paced=True),
    _from_half("lora, nothing preserved", _NOTHING, paced=True),
    _from_half("lora, nothing preserved, no warm-up", {**_NOTHING, _WARM_UP: 0}, paced=True),
    Way("lokr", "lokr", paced=True),
    *(_whole(factor) for factor in (2, 4, 8)),
    *(_whole(factor, 3.0) for factor in (8, 16)),
    Way("loha", "loha", paced=True),
)
"""Where nothing is preserved, a step has the twelve images once, and one of the plain loop 16."""

_CLASSES = {f"{_KEEP}.class_word": CLASS_WORD, "dataset.trigger_word": CHANGED_CONCEPT}
OTHERS: Mapping[str, Sequence[Way]] = {
    "nothing": (_from_half("as it is", {}),),
    "optimizer": tuple(_optimizer(name) for name in OPTIMIZERS),
    "preservation": (
        _from_half("none", _NOTHING),
        _from_half("class", {f"{_KEEP}.kind": "class", **_CLASSES}),
        _from_half("output", {f"{_KEEP}.kind": "output", **_CLASSES}),
        _from_half("blank", {f"{_KEEP}.kind": "blank"}),
    ),
    "average": (
        _from_half("EMA 0.95", _EMA),
        _from_half("constant", _CONSTANT),
        _from_half("constant, EMA 0.95", {**_CONSTANT, **_EMA}),
    ),
    "noise and loss": (
        *(
            _from_half(f"density {name}", {_DENSITY: name, "training.sigma.shift": None})
            for name in ("logit_normal", "uniform")
        ),
        *(
            _from_half(f"weighting {name}", {"training.loss.weighting": name})
            for name in ("min_snr", "cosmap", "learned", "logit_normal", "sigma_sqrt")
        ),
        *(_from_half(f"loss {name}", {"training.loss.kind": name}) for name in ("huber", "mae")),
    ),
}
"""Rows with one change from `HALF`, by what is changed."""

BLOCKS = (
    Way("all blocks"),
    *(
        Way(f"blocks {numbers}", changed={"adapter.exclude": [rf"\D+\.[^{numbers}]\..*"]})
        for numbers in ("01", "12", "34")
    ),
)
"""A LoRA in a part of the embedded base's five blocks, with everything else as the preset."""


class Run(NamedTuple):
    """One row of the file."""

    group: str
    way: Way
    concept: str
    seed: int


def runs() -> Iterator[Run]:
    """Every run, what matters most first."""
    for seed in SEEDS:
        for concept, way in itertools.product(CONCEPTS, DEFAULTS):
            yield Run("default", way, concept, seed)
        for concept, way in itertools.product(SHAPES, EARLIER):
            yield Run("earlier", way, concept, seed)
        for way in PACED:
            yield Run("pace", way, PACED_CONCEPT, seed)
        for concept, way in itertools.product(SHAPES[:4], BLOCKS):
            yield Run("blocks", way, concept, seed)
    for group, ways in OTHERS.items():
        for seed, way in itertools.product(SEEDS, ways):
            yield Run(group, way, CHANGED_CONCEPT, seed)


def config_for(
    way: Way, concept: str, seed: int, images: Path, output: Path, steps: int | None = None
) -> RunConfig:
    """The run file of a row: a preset, and the settings that the row changes.

    Args:
        way: The row.
        concept: One of `CONCEPTS`.
        seed: Of the run.
        images: Folder of the images.
        output: Folder for everything that is written.
        steps: In the place of the preset's.
    """
    preset = plan_preset(
        embedded_family().name,
        "edit" if concept == EDIT else "object",
        "standard",
        images=PAIRS if concept == EDIT else IMAGES,
        kind=way.kind,
        embedded=True,
    ).values
    values = {**preset, **way.base, "dataset.path": str(images), "output.dir": str(output)}
    values["seed"] = seed
    values |= {"memory.device": "cpu", "output.name": "run"}
    values[_RATE] = float(f"{values[_RATE] * way.pace:.6g}")
    if steps is not None:
        values |= {"training.steps": steps, "training.schedule.warmup_steps": steps // 10}
    if way.paced:
        values |= {"training.checkpoint_every": EVERY, "training.keep_every": EVERY}
    values |= way.changed
    if not values[f"{_KEEP}.share"]:
        values.pop(_COUNT, None)
    return config_of(values)


class _Clock(SilentObserver):
    """CPU seconds, from before the first step, of every checkpoint."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self._started = 0.0

    def notify(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._started = time.process_time()
        if isinstance(event, CheckpointSaved):
            seconds = time.process_time() - self._started
            self.marks.append(Mark(event.step, seconds, event.folder / "adapter.safetensors"))


def measure(run: Run, folder: Path, steps: int | None = None, count: int = ASKED) -> dict[str, Any]:
    """Train once and mark what the adapter generates.

    Args:
        run: The row.
        folder: Kept between the rows of a concept and seed, so that images are encoded once.
        steps: In the place of the preset's.
        count: Images that are asked for each share.

    Returns:
        The row: shares of right images, steps, CPU seconds of the run without its preparation.
    """
    images = folder / f"{run.concept}-{run.seed}"
    asked = prepare(run.concept, run.seed, images, count)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        config = config_for(run.way, run.concept, run.seed, images, Path(place), steps)
        length = run_length(config)
        if run.way.plain:
            marks = train_plainly(config, length, EVERY, Path(place))
            adapter = marks[-1].adapter
        else:
            clock = _Clock()
            adapter = train(config, clock).adapters[0]
            marks = clock.marks
        row: dict[str, Any] = {"group": run.group, "way": run.way.name, "concept": run.concept}
        row |= {"seed": run.seed, "steps": length}
        row["learning_rate"] = config.training.optimizer.learning_rate
        row["cpu_seconds"] = round(marks[-1].seconds, 1)
        with open_pipeline(config, has_controls=run.concept == EDIT) as pipeline:
            row |= shares_of(pipeline, config, adapter, asked)
            if run.way.paced:
                row["reached"] = _reached(pipeline, config, marks, asked.seen)
    return row


def shares_of(
    pipeline: Pipeline, config: RunConfig, adapter: Path, asked: Asked
) -> dict[str, float]:
    """What an adapter gets right of what it is asked."""
    attached = pipeline.put_on(adapter)
    trigger = config.dataset.trigger_word
    shares = {
        "seen": right_share(pipeline, config, asked.seen, trigger),
        "unseen": right_share(pipeline, config, asked.unseen, trigger),
        "kept": right_share(pipeline, config, asked.kept),
    }
    attached.detach()
    return shares


def right_share(
    pipeline: Pipeline, config: RunConfig, tasks: Sequence[Task], trigger: str = ""
) -> float:
    """Of right images; generated as previews are."""
    requests = [
        pipeline.request(
            with_trigger(trigger, task.text),
            _IMAGE_SEED + number,
            () if task.control is None else (task.control,),
        )
        for number, task in enumerate(tasks)
    ]
    images = pipeline.sample(requests, sample_settings(config))
    pixels = [np.asarray(from_pixels(image)) for image in images]
    right = [task.right(each) for task, each in zip(tasks, pixels, strict=True)]
    return round(sum(right) / len(right), 3)


def _reached(
    pipeline: Pipeline, config: RunConfig, marks: Sequence[Mark], seen: Sequence[Task]
) -> dict[str, Any] | None:
    """The first saved adapter that gets enough right; None where none does."""
    for mark in marks:
        attached = pipeline.put_on(mark.adapter)
        share = right_share(pipeline, config, seen)
        attached.detach()
        if share >= REACHED:
            return {"step": mark.step, "cpu_seconds": round(mark.seconds, 2)}
    return None


def _place(row: Mapping[str, Any]) -> tuple[str, str, str, int]:
    return row["group"], row["way"], row["concept"], row["seed"]


def base_alone(concept: str, seed: int, folder: Path) -> dict[str, Any]:
    """What the base gets right without an adapter."""
    images = folder / f"{concept}-{seed}"
    asked = prepare(concept, seed, images)
    config = config_for(DEFAULTS[0], concept, seed, images, folder)
    with open_pipeline(config, has_controls=concept == EDIT) as pipeline:
        shares = {
            name: right_share(pipeline, config, tasks) for name, tasks in asked._asdict().items()
        }
    return {"group": "base", "way": "base", "concept": concept, "seed": seed, "steps": 0} | shares


def main(words: Sequence[str] | None = None) -> None:
    """Measure what is not in the file yet, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--groups", nargs="*", help="only these")
    parser.add_argument("--ways", nargs="*", help="only these rows")
    parser.add_argument("--concepts", nargs="*", default=CONCEPTS)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, help="in the place of the presets'")
    given = parser.parse_args(words)
    record = read_record(given.output) if given.output else {}
    rows, sessions = record.get("rows", []), record.get("sessions", [])
    sessions.append(origin())
    there = {_place(row) for row in rows}
    base = [Run("base", Way("base"), concept, SEEDS[0]) for concept in CONCEPTS]
    with tempfile.TemporaryDirectory() as folder:
        for run in (*base, *runs()):
            wanted = (
                run.concept in given.concepts
                and run.seed in given.seeds
                and (given.groups is None or run.group in given.groups)
                and (given.ways is None or run.way.name in given.ways)
                and (run.group, run.way.name, run.concept, run.seed) not in there
            )
            if not wanted:
                continue
            if run.group == "base":
                row = base_alone(run.concept, run.seed, Path(folder))
            else:
                row = measure(run, Path(folder), given.steps)
            rows.append(row | {"session": len(sessions) - 1})
            print(json.dumps(row), flush=True)
            if given.output:
                content = {"benchmark": "learning", "bars": BARS, "sessions": sessions}
                write_record(given.output, content | {"rows": rows})


if __name__ == "__main__":
    main()
