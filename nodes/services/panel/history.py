"""A run's course up to now, as the panel shows it, read from its version folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....trainer_core.config.read_run_file import load_config
from ....trainer_core.errors import InputError
from ....trainer_core.filesystem.text_files import (
    parse_json,
    read_lines,
    read_object,
    require_regular,
)
from ....trainer_core.inference.preview_files import preview_files
from ....trainer_core.training.checkpoints.run_folder import failure_reason, run_status
from ....trainer_core.training.checkpoints.run_names import METRICS, RECORD, RUN_FILE, SAMPLES

POINTS = 2000
"""So many steps of a longer run are read."""

_IMAGES = 600
_LAST = 20  # steps whose mean time is told
_TAIL = 8192
"""Bytes at the end of a metrics file that hold the last steps."""

_PROMPTS = "preview.prompts"

Place = Callable[[Path], Mapping[str, str]]
"""How the browser asks for an image."""


HeldOut = tuple[int, float, float | None]
"""Step, loss on held-out images, and on as many trained ones where that was measured."""


class History(NamedTuple):
    """What a version folder tells of its run.

    Attributes:
        step: The last step that was made, also where it was skipped.
        points: Step, loss and learning rate, thinned evenly; the last of them is kept.
        samples: Preview images by step, then prompt, as the panel's state has them.
        step_seconds: Mean of the last steps; 0 without any.
        held_out: What was measured on held-out images, thinned; the lowest is among them.
        advice: What was said of it, as its record has it.
    """

    step: int
    points: list[tuple[int, float, float]]
    samples: list[dict[str, Any]]
    step_seconds: float
    held_out: list[HeldOut]
    advice: list[dict[str, Any]]


class Ending(NamedTuple):
    """How a run has ended, by its record.

    Attributes:
        status: ``done``, ``stopped``, ``cancelled``, ``failed``, or ``lost`` for one that died.
        step: Steps that its last checkpoint or its end has made.
        steps: How many it was to make.
        best: The step of the checkpoint that is best on held-out images, if there is one.
        asked: Steps that its settings ask for, where it was made longer since.
        reason: The message of the error that ended it.
    """

    status: str
    step: int
    steps: int
    best: int | None = None
    asked: int = 0
    reason: str = ""

    @property
    def message(self) -> str:
        """The line that the panel shows."""
        best = "" if self.best is None else f" Best on held-out images: step {self.best}."
        why = f" {self.reason}" if self.reason else ""
        return f"{self._how}{best}{why}"

    @property
    def _how(self) -> str:
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
    """Read the steps and preview images of a run; `place` tells where the browser finds an image.

    `prompts` are the preview prompts as they are now; earlier ones are in the run's record.
    """
    lines = _thinned(folder / METRICS)
    read = [entry for line in lines if (entry := read_step(line))]
    times = [seconds for *_, seconds in read[-_LAST:]]
    return History(
        next((step for line in reversed(lines) if (step := _number(line))), 0),
        [(step, loss, rate) for step, loss, rate, _ in read],
        _samples(folder, place, _prompts_by_step(folder, prompts)),
        step_seconds=sum(times) / len(times) if times else 0.0,
        held_out=_held_out(folder / METRICS),
        advice=_advice(folder),
    )


def read_run_file(folder: Path) -> tuple[Sequence[str], int | None]:
    """The preview prompts and the seed of a run's last run file, where it can be read."""
    try:
        config = load_config(folder / RUN_FILE)
    except InputError:
        return (), None
    return config.preview.prompts, config.seed


def read_ending(folder: Path) -> Ending:
    """How a run has ended, or that it runs; `InputError` where its record is damaged."""
    record = read_object(folder / RECORD, _refused)
    try:
        status, step = str(record["status"]), int(record.get("step", 0))
        steps = int(record.get("steps", step))
        best = record.get("best")
        best = None if best is None else int(best["step"])
        requested = int(record.get("asked_steps") or 0)
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise _refused(f"{type(error).__name__}: {error}") from error
    status = run_status(folder, record)
    if status == "done" and step < steps:
        status = "stopped"
    known = status in {"done", "stopped", "cancelled", "failed", "running"}
    return Ending(
        status if known else "lost",
        step,
        steps,
        best=best,
        asked=requested,
        reason=failure_reason(record),
    )


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


def read_step(line: str) -> tuple[int, float, float, float] | None:
    """Step, loss, learning rate and seconds of a line of metrics; None where it is none."""
    try:
        values = parse_json(line)
        names = ("loss", "learning_rate", "step_seconds")
        loss, rate, seconds = (float(values[name]) for name in names)
        # JSON for a browser knows no infinity; the trainer writes none.
        finite = all(map(math.isfinite, (loss, rate, seconds)))
        return (int(values["step"]), loss, rate, seconds) if finite else None
    except (ValueError, TypeError, LookupError, OverflowError):
        return None  # what a crash left of the last line


def _number(line: str) -> int:
    """The step of a line of metrics, which has no loss where it was skipped; 0 where it is none."""
    try:
        values = parse_json(line)
        return int(values["step"]) if values.get("skipped") is True or read_step(line) else 0
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError):
        return 0


def last_steps(path: Path) -> list[tuple[int, float, float, float]]:
    """The last steps of a file that may be long, as `read_step` has them."""
    try:
        start = max(0, require_regular(path) - _TAIL)
        with path.open("rb") as file:
            file.seek(start)
            lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()[-_LAST:]
    except (OSError, ValueError):
        return []
    return [step for line in lines if (step := read_step(line))]


def thinned_losses(found: list[HeldOut]) -> list[HeldOut]:
    """At most `POINTS` of these measurements by rising step, the last and the lowest among them."""
    while len(found) > POINTS:
        lowest = min(found, key=lambda each: each[1])
        found = [e for i, e in enumerate(reversed(found)) if i % 2 == 0 or e is lowest][::-1]
    return found


def _held_out(path: Path) -> list[HeldOut]:
    try:
        # Few lines have it, and only those are parsed.
        lines = [line for line in read_lines(path) if '"validation_loss"' in line]
    except (OSError, ValueError):
        return []
    return thinned_losses([entry for line in lines if (entry := _measured(line))])


def _measured(line: str) -> HeldOut | None:
    try:
        values = parse_json(line)
        loss, trained = float(values["validation_loss"]), values.get("trained_loss")
        other = None if trained is None else float(trained)
        finite = all(map(math.isfinite, (loss, 0.0 if other is None else other)))
        return (int(values["step"]), loss, other) if finite else None
    except (ValueError, TypeError, LookupError, OverflowError):
        return None


def _advice(folder: Path) -> list[dict[str, Any]]:
    from ....trainer_core.training.metrics.advice import ADVICE, read_advice

    try:
        return read_advice(read_object(folder / "run.json", _refused).get(ADVICE))
    except InputError:
        return []


def _samples(
    folder: Path, place: Place, prompts: Callable[[int], Sequence[str]]
) -> list[dict[str, Any]]:
    found = [path for path in folder.glob(f"{SAMPLES}/[0-9]*") if path.name.isdecimal()]
    steps = sorted(found, key=lambda path: int(path.name))
    samples: list[dict[str, Any]] = []
    # The newest are looked at first; of many steps the first, before training, stays.
    every = 1
    while len(steps) // every > _IMAGES:
        every *= 2
    for path in sorted({*steps[:1], *steps[::-every]}, key=lambda path: int(path.name)):
        for image in preview_files(path):
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
        changes = read_object(folder / RECORD, _refused).get("changes")
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
