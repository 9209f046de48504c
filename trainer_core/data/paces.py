"""How often each sample is trained, and how much it counts: its own factors times its folder's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ..config import DatasetSection
from ..config.dataset_folders import DatasetFolder, dataset_folders
from ..errors import ConfigError


class Paced(Protocol):
    """What is asked of a sample: `Sample` and `CachedItem` have it."""

    @property
    def regularization(self) -> bool:
        """As in `Sample`."""
        ...

    @property
    def validation(self) -> bool:
        """As in `Sample`."""
        ...

    @property
    def folder(self) -> int:
        """As in `Sample`."""
        ...

    @property
    def repeats(self) -> int:
        """As in `Sample`."""
        ...

    @property
    def weight(self) -> float:
        """As in `Sample`."""
        ...


MOST_REPEATS = 100_000
"""How often one image may appear in an epoch: its own repeats times its folder's."""

MOST_SAMPLES = 100_000_000
"""Samples of an epoch, repeats counted; their order is kept in memory."""

_USUAL: Mapping[str, Any] = {
    "regularization": False,
    "validation": False,
    "folder": 0,
    "repeats": 1,
    "weight": 1.0,
}


def pace_record(item: Paced) -> dict[str, Any]:
    """What the list of a finished cache says of a sample's pace: what is not as usual."""
    found = {name: getattr(item, name) for name in _USUAL}
    return {name: value for name, value in found.items() if value != _USUAL[name]}


def pace_marks(item: Paced) -> list[str]:
    """Words that stand in a dataset's identity for what of a sample's pace is not as usual.

    ``regularization`` comes first and alone, as before there was more than one further folder.
    """
    marks = ["regularization"] if item.regularization else []
    own = pace_record(item)
    names = ("validation", "repeats", "weight", *(() if item.regularization else ("folder",)))
    return marks + [f"{name} {own[name]}" for name in names if name in own]


def read_pace(record: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `pace_record` gave, from a list that anybody may have written.

    Raises:
        ValueError: When a value is none that a sample can have.
        TypeError: As well.
    """
    pace = {name: type(usual)(record.get(name, usual)) for name, usual in _USUAL.items()}
    if pace["folder"] < 0 or pace["repeats"] < 1 or not 0 <= pace["weight"] < math.inf:
        raise ValueError(f"a sample's pace is {pace}")
    return pace


def sample_paces(
    items: Iterable[Paced], dataset: DatasetSection
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Tell how often each sample appears in an epoch, and the factor on its loss.

    Args:
        items: The samples, in order.
        dataset: The run file's section, whose folders the samples count.

    Returns:
        Repeats, at least 1 of what is trained and 0 of what is held out; and weights, at least 0.

    Raises:
        ConfigError: When samples lie in more folders than the section names, which a finished cache
            of another run file has; or when they are repeated too often.
    """
    factors = [(each.settings.num_repeats, each.weight) for each in dataset_folders(dataset)]
    ordinary = dataset.regularization.num_repeats, dataset.regularization.weight
    folders = dataset_folders(dataset)
    repeats: list[int] = []
    weights: list[float] = []
    for item in items:
        if item.folder >= len(factors):
            raise _too_few(item.folder, folders)
        often, weight = factors[item.folder]
        if item.regularization and folders[item.folder].role != "regularization":
            # Lists of finished caches did not count folders when there were two at most.
            often, weight = ordinary
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
