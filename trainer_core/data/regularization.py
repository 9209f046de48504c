"""Regularization images: a second folder of ordinary images, beside the own ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..config import DatasetSection
from ..errors import DatasetError
from ..filesystem.allowed_folders import AllowedFolders
from .folder import Scan, scan

REGULARIZATION = "regularization"
"""What the names of regularization images begin with."""


def scan_all(
    settings: DatasetSection, within: AllowedFolders | None = None, *, stop: bool = True
) -> Scan:
    """Read the dataset folder and, where one is named, the folder of regularization images.

    Args:
        settings: The folders, their layout, and what to do about mistakes.
        within: As for `scan`.
        stop: As `scan`.

    Returns:
        The samples of both, the own ones first.

    Raises:
        DatasetError: As `scan`; and when both are one folder, or one has control images and the
            other has none.
    """
    own = scan(settings, within, stop=stop)
    second = settings.regularization.path
    if not second:
        return own
    if Path(second).expanduser().resolve() == Path(settings.path).expanduser().resolve():
        raise DatasetError(
            f"dataset.regularization.path: {second} is dataset.path as well",
            "another folder, with ordinary pictures",
            "Name a folder of ordinary pictures, or leave dataset.regularization.path out.",
        )
    try:
        ordinary = settings.model_copy(update={"path": second, "trigger_word": ""})
        found = scan(ordinary, within, stop=stop)
    except DatasetError as error:
        message = error.found.replace("dataset.path", "dataset.regularization.path")
        raise DatasetError(message, error.expected, error.remedy) from error
    if any(s.controls for s in own.samples) != any(s.controls for s in found.samples):
        raise DatasetError(
            "one of dataset.path and dataset.regularization.path has control pictures, the other "
            "has none",
            "both with control pictures, or both without",
            "Add control pictures to the folder without, or name another folder.",
        )
    marked = tuple(
        dataclasses.replace(sample, name=f"{REGULARIZATION}/{sample.name}", regularization=True)
        for sample in found.samples
    )
    problems = tuple(f"{REGULARIZATION}: {problem}" for problem in found.problems)
    return Scan(own.samples + marked, own.problems + problems, own.refusal or found.refusal)
