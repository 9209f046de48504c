"""How often each sample is trained, and how much it counts: its own factors times its folder's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..config import DatasetSection
from ..config.dataset import DatasetFolder, dataset_folders
from ..errors import ConfigError
from ..types import Sample


class Pace(NamedTuple):
    """How often a sample is trained, and how much it counts; as in `Sample`."""

    regularization: bool
    validation: bool
    folder: int
    repeats: int
    weight: float


MOST_REPEATS = 100_000
"""How often one image may appear in an epoch: its own repeats times its folder's."""

MOST_SAMPLES = 100_000_000
"""Samples of an epoch, repeats counted; their order is kept in memory."""

_USUAL = {"validation": False, "repeats": 1, "weight": 1.0, "folder": 0}


def pace_marks(item: Sample | Pace) -> list[str]:
    """Words that stand in a dataset's identity for what of a sample's pace is not as usual.

    A regularization image's folder is left out: an identity once knew a single such folder.
    """
    marks = ["regularization"] if item.regularization else []
    for name, usual in _USUAL.items():
        value = getattr(item, name)
        if value != usual and not (name == "folder" and item.regularization):
            marks.append(f"{name} {value}")
    return marks


def repeats_and_weights(
    items: Iterable[Sample | Pace], dataset: DatasetSection
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Tell how often each sample appears in an epoch, and the factor on its loss.

    Args:
        dataset: The run file's section, whose folders the samples count.

    Returns:
        Repeats, at least 1 of what is trained and 0 of what is held out; and weights, at least 0.

    Raises:
        ConfigError: When samples lie in more folders than the section names, which a finished cache
            of another run file has; or when they are repeated too often.
    """
    factors = [(each.settings.num_repeats, each.weight) for each in dataset_folders(dataset)]
    folders = dataset_folders(dataset)
    repeats: list[int] = []
    weights: list[float] = []
    for item in items:
        if item.folder >= len(factors):
            raise _too_few(item.folder, folders)
        often, weight = factors[item.folder]
        repeats.append(0 if item.validation else often * item.repeats)
        weights.append(weight * item.weight)
    if max(repeats, default=0) > MOST_REPEATS or sum(repeats) > MOST_SAMPLES:
        raise _too_many(max(repeats), sum(repeats))
    return tuple(repeats), tuple(weights)


def _too_many(most: int, total: int) -> ConfigError:
    return ConfigError(
        f"dataset.num_repeats: an image appears {most} times in an epoch of {total} samples, its "
        "own repeats times its folder's num_repeats",
        f"at most {MOST_REPEATS} times, and at most {MOST_SAMPLES} samples in an epoch",
        "Lower dataset.num_repeats, or the repeats of the metadata file or of kohya's folder "
        "names: training.steps says how long is trained.",
    )


def _too_few(folder: int, folders: tuple[DatasetFolder, ...]) -> ConfigError:
    return ConfigError(
        f"dataset.folders: the finished cache has samples of {folder + 1} folders or more, and the "
        f"run file names {len(folders)}",
        "the folders that the cache was encoded with, in their order, or at least as many: each "
        "says how often its images are trained and how much they count",
        "Take dataset.folders and dataset.regularization from the run file that made the cache, or "
        "encode again.",
    )
