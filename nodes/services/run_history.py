"""A run's course up to now, as the panel shows it, read from its version folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...trainer_core.config.reading import load_config
from ...trainer_core.errors import InputError
from ...trainer_core.filesystem.storage import holder
from ...trainer_core.filesystem.text_files import parse_json, read_lines, read_object

POINTS = 2000
"""So many steps of a longer run are read."""

_IMAGES = 600
_LAST = 20  # steps whose mean time is told
_PROMPTS = "preview.prompts"

Place = Callable[[Path], Mapping[str, str]]
"""How the browser asks for an image."""


class History(NamedTuple):
    """What a version folder tells of its run.

    Attributes:
        points: Step, loss and learning rate, thinned evenly; the last step is among them.
        samples: Preview images by step, then prompt, as the panel's state has them.
        step_seconds: Mean of the last steps; 0 without any.
    """

    points: list[tuple[int, float, float]]
    samples: list[dict[str, Any]]
    step_seconds: float

    @property
    def step(self) -> int:
        """The last step that was made."""
        return self.points[-1][0] if self.points else 0


class Ending(NamedTuple):
    """How a run has ended, by its record.

    Attributes:
        status: ``done``, ``stopped``, ``cancelled``, ``failed``, or ``lost`` for one that died.
        step: Steps that its last checkpoint or its end has made.
        steps: How many it was to make.
    """

    status: str
    step: int
    steps: int

    @property
    def message(self) -> str:
        """The line that the panel shows."""
        if self.status == "done":
            return f"Trained {self.step} steps."
        if self.status == "stopped":
            return f"Stopped at step {self.step} of {self.steps}. What was learned is kept."
        if self.status == "running":
            return "It is being trained elsewhere."
        if not self.step:
            return "Stopped before the first checkpoint. Run begins anew."
        how = "Stopped at" if self.status == "cancelled" else "Broke off. The last checkpoint is of"
        return f"{how} step {self.step}. Run goes on from there."


def read_history(folder: Path, place: Place, prompts: Sequence[str]) -> History:
    """Read the steps and preview images of a run.

    Args:
        folder: Its version folder.
        place: Tells where the browser finds an image.
        prompts: The preview prompts as they are now; earlier ones are in the run's record.
    """
    read = [entry for line in _thinned(folder / "metrics.jsonl") if (entry := _step(line))]
    times = [seconds for *_, seconds in read[-_LAST:]]
    return History(
        [(step, loss, rate) for step, loss, rate, _ in read],
        _samples(folder, place, _prompts_by_step(folder, prompts)),
        sum(times) / len(times) if times else 0.0,
    )


def read_run_file(folder: Path) -> tuple[Sequence[str], int | None]:
    """The preview prompts and the seed of a run's last run file, where it can be read."""
    try:
        config = load_config(folder / "run.yaml")
    except InputError:
        return (), None
    return config.preview.prompts, config.seed


def read_ending(folder: Path) -> Ending:
    """How a run has ended, or that it runs.

    Raises:
        InputError: When its record is damaged.
    """
    record = read_object(folder / "run.json", _refused)
    try:
        status, step = str(record["status"]), int(record.get("step", 0))
        steps = int(record.get("steps", step))
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise _refused(f"{type(error).__name__}: {error}") from error
    if status == "running":
        status = "running" if holder(folder / "lock.json") else "lost"
    elif status == "done" and step < steps:
        status = "stopped"
    known = status in {"done", "stopped", "cancelled", "failed", "running"}
    return Ending(status if known else "lost", step, steps)


def _refused(reason: str) -> InputError:
    return InputError(
        f"run.json cannot be read ({reason})",
        "the record that the trainer keeps of every run",
        "Choose another run.",
    )


def _thinned(path: Path) -> list[str]:
    try:
        lines = list(read_lines(path))
    except (OSError, ValueError):
        return []
    every = -(-len(lines) // POINTS) or 1
    # From the end, so that the last step is among them.
    return lines[::-1][::every][::-1]


def _step(line: str) -> tuple[int, float, float, float] | None:
    try:
        values = parse_json(line)
        names = ("loss", "learning_rate", "step_seconds")
        loss, rate, seconds = (float(values[name]) for name in names)
        # JSON for a browser knows no infinity; the trainer writes none.
        finite = all(map(math.isfinite, (loss, rate, seconds)))
        return (int(values["step"]), loss, rate, seconds) if finite else None
    except (ValueError, TypeError, LookupError, OverflowError):
        return None  # what a crash left of the last line


def _samples(
    folder: Path, place: Place, prompts: Callable[[int], Sequence[str]]
) -> list[dict[str, Any]]:
    found = [path for path in folder.glob("samples/[0-9]*") if path.name.isdecimal()]
    steps = sorted(found, key=lambda path: int(path.name))
    samples: list[dict[str, Any]] = []
    # The newest are looked at first; of many steps the first, before training, stays.
    every = 1
    while len(steps) // every > _IMAGES:
        every *= 2
    for path in sorted({*steps[:1], *steps[::-every]}, key=lambda path: int(path.name)):
        images = [image for image in path.glob("*.png") if image.stem.isdecimal()]
        for image in sorted(images, key=lambda each: int(each.stem)):
            step, index = int(path.name), int(image.stem)
            samples.append(sample_of(step, index, prompts(step), place(image)))
    return samples


def sample_of(
    step: int, index: int, prompts: Sequence[str], place: Mapping[str, str]
) -> dict[str, Any]:
    """A preview image as the panel's state has it."""
    prompt = prompts[index] if index < len(prompts) else ""
    return {"step": step, "index": index, "prompt": prompt, **place}


def _prompts_by_step(folder: Path, now: Sequence[str]) -> Callable[[int], Sequence[str]]:
    """The prompts of a step: what a resume changes holds for the steps after it."""
    try:
        changes = read_object(folder / "run.json", _refused).get("changes")
        past = [
            (int(each["step"]), [str(prompt) for prompt in each["from"]])
            for each in changes or ()
            if each["setting"] == _PROMPTS
        ]
    except (InputError, ValueError, TypeError, LookupError, OverflowError):
        past = []

    def prompts(step: int) -> Sequence[str]:
        return next((before for until, before in past if step <= until), now)

    return prompts
