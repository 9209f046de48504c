"""What of a run is compared: the base, its checkpoints, and its finished adapter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from ...config import RunConfig
from ...config.run import names_step
from ...data.image import open_image
from ...data.sources.scan_dataset import scan_all
from ...errors import InputError
from ...filesystem.allowed_folders import AllowedFolders
from ...inference.comparison import Column
from ...inference.pipeline import Candidate
from .checkpoint import ADAPTER_FILE, checkpoint_folders
from .find_checkpoint import best_step

MOST_COLUMNS = 60


def run_columns(
    version: Path, checkpoints: Sequence[int] | None = None, strengths: Sequence[float] = (1.0,)
) -> list[Column]:
    """The base, then each checkpoint at each strength.

    Args:
        checkpoints: Their steps; None for all.
        strengths: Factors on the adapter; at least one.

    Raises:
        InputError: When a step has no checkpoint, the run has none, or there are too many columns.
    """
    saved = {
        int(folder.name): folder / ADAPTER_FILE
        for folder in checkpoint_folders(version / "checkpoints")
        if (folder / ADAPTER_FILE).is_file()
    }
    steps = sorted(saved) if checkpoints is None else list(dict.fromkeys(checkpoints))
    missing = [step for step in steps if step not in saved]
    if missing or not steps:
        raise InputError(
            f"checkpoints: {', '.join(map(str, missing)) or 'none'} of {version}",
            "some of " + (", ".join(map(str, sorted(saved))) or "(the run has none)"),
            "Name steps that were saved; training.keep_checkpoints and training.keep_every keep "
            "more.",
        )
    if len(steps) * len(strengths) >= MOST_COLUMNS:
        raise InputError(
            f"{len(steps)} checkpoints at {len(strengths)} strengths",
            f"fewer than {MOST_COLUMNS} columns",
            "Name some of the checkpoints: checkpoints=500,1000.",
        )
    best = best_step(version)
    columns = [Column("base")]
    for step in steps:
        path = saved[step]
        for strength in strengths:
            label = f"step {step}{_at(strength, strengths)}"
            columns.append(
                Column(label, Candidate(path, strength), step, file=str(path), best=step == best)
            )
    return columns


def _at(strength: float, strengths: Sequence[float]) -> str:
    return f" at {strength:g}" if len(strengths) > 1 or strength != 1.0 else ""


def file_columns(files: Sequence[Path], strengths: Sequence[float]) -> list[Column]:
    """Other adapter files at each strength, named after their files."""
    return [
        Column(f"{file.stem}{_at(strength, strengths)}", Candidate(file, strength), None, str(file))
        for file in files
        for strength in strengths
    ]


MOST_REFERENCES = 64


def reference_images(
    config: RunConfig, within: AllowedFolders | None = None
) -> tuple[Iterator[Image.Image], str]:
    """The images of a run's dataset that generated ones are to be like.

    Returns:
        Up to `MOST_REFERENCES` held-out images, upright; where none is held out, as many of the
        trained ones, each opened when it is asked for; and what they are, in words.

    Raises:
        InputError: When the dataset is not there, or has no image.
    """
    found = scan_all(config.dataset, within, stop=False, seed=config.seed).samples
    own = [each for each in found if not each.regularization and each.clip is None]
    held = [each for each in own if each.validation]
    chosen = held or own
    if not chosen:
        raise InputError(
            f"no image in {config.dataset.path or 'the run file of the run'}",
            "the images that the run was trained with, to measure likeness",
            "Put them back, or disconnect clip_vision.",
        )
    if len(chosen) > MOST_REFERENCES:
        chosen = [
            chosen[place * len(chosen) // MOST_REFERENCES] for place in range(MOST_REFERENCES)
        ]
    what = f"{len(chosen)} {'held-out' if held else 'trained'} image{'s' * (len(chosen) > 1)}"
    # They may be of any size: each is opened when it is its turn.
    return (open_image(each.image, config.dataset.animated) for each in chosen), what


def read_strengths(text: str) -> tuple[float, ...]:
    """Numbers with commas between.

    Raises:
        InputError: When it is something else.
    """
    try:
        found = tuple(float(part) for part in text.strip("[] ").split(","))
    except ValueError:
        found = (math.nan,)
    if not all(math.isfinite(each) for each in found):
        raise InputError(
            f"strengths: {text!r}", "numbers with commas between, such as 1, 0.6", "Correct them."
        )
    return found


def read_steps(text: str) -> tuple[int, ...] | None:
    """Steps with commas between; None for all.

    Raises:
        InputError: When it is something else.
    """
    if text.strip() in {"all", ""}:
        return None
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    if not all(names_step(part) for part in parts):
        raise InputError(
            f"checkpoints: {text!r}",
            "all, or steps with commas between, such as 250, 500",
            "Correct them.",
        )
    return tuple(map(int, parts))
