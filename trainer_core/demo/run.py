"""The demonstration: train on the embedded base, then show and measure what was learned."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from ..config import RunConfig
from ..data.image import from_pixels
from ..device import borrowed_threads
from ..errors import RunError
from ..families.registry import embedded_family
from ..families.run_files import template_config
from ..filesystem.storage import atomic_write, write_json
from ..filesystem.temporary import remove_leftovers
from ..inference.pipeline import open_pipeline
from ..inference.sampler import SampleRequest, SampleSettings
from ..training import train
from ..training.observer import Observer, Warned
from .checker import read_image
from .exam import (
    Question,
    base_edit_questions,
    base_questions,
    concept_questions,
    frame_questions,
    mark,
)
from .vocabulary import CONCEPT_COLORS, CONCEPT_SHAPE, IMAGE_SIZE, OWN_SHAPE

Task = Literal["generate", "edit", "own"]
RANKS_AND_RATES = {"lora": (16, 3e-3), "loha": (16, 3e-3)}
"""Rank and learning rate of the kinds that the tiny preset is not made for."""


def dataset_folder(task: Task) -> Path:
    """Folder of the bundled dataset of a task."""
    return Path(__file__).parent.parent / "assets" / f"demo-{task}"


def demo_config(kind: str, task: Task, output: Path) -> RunConfig:
    """Build the run file of the demonstration: the tiny preset, on the bundled images.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        task: ``generate`` teaches a shape and ``edit`` an edit, with ordinary images beside
            them; ``own`` teaches a shape from twelve images alone.
    """
    template = template_config(embedded_family().name, "tiny_edit" if task == "edit" else "tiny")
    values = template.model_dump(mode="json")
    values["dataset"]["path"] = str(dataset_folder(task))
    # The same run file generates the images that are then edited.
    values["base"]["variant"] = "auto"
    values["cache"]["dir"] = str(output / "cache")
    if kind != "lokr":
        rank, rate = RANKS_AND_RATES[kind]
        values["adapter"] |= {"kind": kind, "rank": rank, "factor": -1}
        values["training"]["optimizer"]["learning_rate"] = rate
    values["training"]["precision"] = "fp32"
    values["memory"]["device"] = "cpu"
    values["output"] |= {"dir": str(output / "runs"), "name": f"demo-{task}-{kind}"}
    if task != "edit":
        shape = OWN_SHAPE if task == "own" else CONCEPT_SHAPE
        prompts = [f"a {c} {shape} on a green background" for c in CONCEPT_COLORS[:2]]
        values["preview"] |= {"every": 100, "prompts": prompts}
    return RunConfig.model_validate(values)


def sample_settings(config: RunConfig) -> SampleSettings:
    """How the demonstration generates: as its previews."""
    preview = config.preview
    return SampleSettings(preview.width, preview.height, preview.steps, preview.guidance)


SAMPLES = 50
SHOWN = 6
_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """What ``summary.json`` holds; paths are relative to it.

    Attributes:
        task: ``generate``, ``edit`` or ``own``.
        base_accuracy: Share of concept questions that the base answers right.
        adapter_accuracy: The same with the adapter.
        base_captions_accuracy: Share of questions on what the base could do before, with the
            adapter.
        train_seconds: Time of the whole run: loading, encoding, steps, previews, export.
    """

    kind: str
    task: str
    base_accuracy: float
    adapter_accuracy: float
    base_captions_accuracy: float
    train_seconds: float
    adapter: str
    pictures: tuple[str, ...]


def run_demo(kind: str, task: Task, output: Path, observer: Observer | None = None) -> DemoSummary:
    """Train the demonstration's adapter and measure it; ``summary.json`` holds what is given.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        task: ``generate``, ``edit`` or ``own``.

    Raises:
        RunError: When training was cancelled, or the adapter at strength 0 changes an image.
    """
    config = demo_config(kind, task, output)
    started = time.perf_counter()
    result = train(config, observer)
    seconds = time.perf_counter() - started
    if result.status != "done":
        raise RunError(
            f"the demonstration was cancelled at step {result.step}",
            "all of its steps",
            "Start it again; each demonstration is a new run.",
        )
    for note in remove_leftovers(output):
        if observer is not None:
            observer.notify(Warned(note))
    with borrowed_threads(config.memory, embedded=True):
        with contextlib.closing(_Exam(config, task)) as exam:
            marks = exam.take(result.adapters[0])
        image = output / f"before_after_{task}_{kind}.png"
        _write_image(image, exam.shown)
    summary = DemoSummary(
        kind=kind,
        task=task,
        base_accuracy=marks[0],
        adapter_accuracy=marks[1],
        base_captions_accuracy=marks[2],
        train_seconds=round(seconds, 1),
        adapter=_relative(result.adapters[0], output),
        pictures=(_relative(image, output),),
    )
    write_json(output / "summary.json", asdict(summary))
    return summary


class _Exam:
    """Generates the image of every question with and without the adapter."""

    def __init__(self, config: RunConfig, task: str) -> None:
        self.shown: list[list[np.ndarray]] = []
        self._pipeline = open_pipeline(config, has_controls=False)
        self._task = task
        self._config = config

    def close(self) -> None:
        """Close the pipeline."""
        self._pipeline.close()

    def take(self, adapter_file: Path) -> tuple[float, float, float]:
        """Give base, adapter and old-skills accuracy."""
        new, old = self._questions()
        requests = self._requests(new)
        before = self._sample(requests)
        adapter = self._pipeline.put_on(adapter_file)
        after = self._sample(requests)
        kept = self._sample(self._requests(old))
        adapter.strength = 0.0
        if not np.array_equal(self._sample(requests), before):
            raise RunError(
                "an image of the adapter at strength 0 differs from the base's",
                "images that are equal bit by bit",
                "This is a defect of the trainer; please report it with your versions.",
            )
        adapter.detach()
        rows = [before[:SHOWN], after[:SHOWN]]
        controls = [q.control for q in new[:SHOWN] if q.control is not None]
        self.shown = [[np.asarray(c) for c in controls], *rows] if controls else rows
        return mark(new, before), mark(new, after), mark(old, kept)

    def _questions(self) -> tuple[list[Question], list[Question]]:
        if self._task != "edit":
            shape = OWN_SHAPE if self._task == "own" else CONCEPT_SHAPE
            return concept_questions(SAMPLES, _SEED, shape), base_questions(SAMPLES, _SEED)
        # The images to edit are generated by the base itself.
        questions = base_questions(3 * SAMPLES, _SEED + 1)
        drawn = zip(questions, self._sample(self._requests(questions)), strict=True)
        # What an image shows must be plain before an edit of it can be marked.
        plain = [p for question, p in drawn if question.right(read_image(p))]
        self._pipeline.close()
        self._pipeline = open_pipeline(self._config, has_controls=True)
        controls = [Image.fromarray(image) for image in plain]
        return (
            frame_questions(controls[:SAMPLES]),
            base_edit_questions(controls[SAMPLES : 2 * SAMPLES], _SEED),
        )

    def _requests(self, questions: Sequence[Question]) -> list[SampleRequest]:
        return [
            self._pipeline.request(
                each.text, _SEED + index, () if each.control is None else (each.control,)
            )
            for index, each in enumerate(questions)
        ]

    def _sample(self, requests: Sequence[SampleRequest]) -> list[np.ndarray]:
        pixels = self._pipeline.sample(requests, sample_settings(self._config))
        return [np.asarray(from_pixels(image)) for image in pixels]


def _write_image(path: Path, rows: Sequence[Sequence[np.ndarray]]) -> None:
    names = (
        ["control", "base", "with the adapter"] if len(rows) == 3 else ["base", "with the adapter"]
    )
    scale, margin, label = 2, 8, 18
    cell = IMAGE_SIZE * scale
    width = margin + len(rows[0]) * (cell + margin)
    sheet = Image.new("RGB", (width, len(rows) * (cell + label + margin) + margin), "white")
    pen = ImageDraw.Draw(sheet)
    for line, (name, row) in enumerate(zip(names, rows, strict=True)):
        top = margin + line * (cell + label + margin)
        pen.text((margin, top), name, fill="black")
        for column, pixels in enumerate(row):
            tile = Image.fromarray(pixels).resize((cell, cell), Image.Resampling.LANCZOS)
            sheet.paste(tile, (margin + column * (cell + margin), top + label))
    atomic_write(path, lambda target: sheet.save(target, format="PNG"))


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


@dataclass(frozen=True, slots=True)
class Bar:
    """What a share of right images is wanted to be.

    Attributes:
        share: Reads the share, in [0, 1], from a summary.
        asked: What the share is of, in words.
        wanted: At least this share is wanted.
    """

    share: Callable[[DemoSummary], float]
    subject: str
    wanted: float

    def broken(self, summary: DemoSummary) -> bool:
        """Whether a summary is so far below the bar that something does not work."""
        return self.share(summary) < self.wanted / 2

    def text(self, summary: DemoSummary) -> str:
        """The bar, and whether a summary misses it."""
        missed = self.share(summary) < self.wanted
        return f"below the bar of {self.wanted:.0%}" if missed else f"bar: {self.wanted:.0%}"


LEARNED = Bar(lambda s: s.adapter_accuracy, "of what it was trained for", 0.80)
KEPT = Bar(lambda s: s.base_captions_accuracy, "of what the base could do before", 0.75)


def require_working(summary: DemoSummary) -> None:
    """Make sure that the trained adapter is not far from what it should be.

    Raises:
        RunError: When it learned or kept so little that something must be broken.
    """
    broken = [bar for bar in (LEARNED, KEPT) if bar.broken(summary)]
    if not broken:
        return
    found = " and ".join(f"{bar.share(summary):.0%} {bar.subject}" for bar in broken)
    expected = " and ".join(f"{bar.wanted:.0%} {bar.subject}" for bar in broken)
    raise RunError(
        f"the {summary.kind} adapter generates only {found} right",
        f"{expected}, and never less than half of that",
        "Look at the images and run `adapter-trainer doctor`; if it is the same again in another "
        "output folder, report it with summary.json and your versions.",
    )
