"""How many samples go through the base together."""

from __future__ import annotations

from collections.abc import Sequence

from ...config import RunConfig, dataset_folders
from ...data.cache.cached_dataset import CachedDataset


def batch_sizes(config: RunConfig, dataset: CachedDataset) -> list[int]:
    """The most samples of a pass, for each sample, as its folder says."""
    usual = config.training.batch_size
    own = [each.settings.batch_size or usual for each in dataset_folders(config.dataset)]
    of_all = config.dataset.batch_size or usual
    return [own[each] if each < len(own) else of_all for each in dataset.folders]


def with_largest_batch(config: RunConfig, dataset: CachedDataset) -> RunConfig:
    """The run file with so many samples a batch that a step of the largest is its largest step.

    Folders of small images may have larger batches than others.
    """
    areas = [each.width * each.height * each.frames for each in dataset.buckets]
    return _with_batch(config, areas, batch_sizes(config, dataset))


def largest_square(config: RunConfig) -> tuple[int, RunConfig]:
    """What is known of a run's largest step before there are images.

    Returns:
        The largest training size in pixels, and the run file as of `with_largest_batch`.
    """
    usual = config.training.batch_size
    sides, sizes = [], []
    for folder in dataset_folders(config.dataset):
        own = folder.settings
        sides.append(max(own.resolution, *own.more_resolutions, 0))
        sizes.append(own.batch_size or usual)
    return max(sides), _with_batch(config, [side * side for side in sides], sizes)


def _with_batch(config: RunConfig, areas: Sequence[int], sizes: Sequence[int]) -> RunConfig:
    most = max(area * size for area, size in zip(areas, sizes, strict=True))
    training = config.training.model_copy(update={"batch_size": -(-most // max(areas))})
    return config.model_copy(update={"training": training})
