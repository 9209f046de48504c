"""How many samples go through the base together."""

from __future__ import annotations

from ..config import RunConfig, dataset_folders
from ..data.cache.cached_dataset import CachedDataset


def batch_sizes(config: RunConfig, dataset: CachedDataset) -> list[int]:
    """The most samples of a pass, for each sample, as its folder says."""
    usual = config.training.batch_size
    own = [each.settings.batch_size or usual for each in dataset_folders(config.dataset)]
    of_all = config.dataset.batch_size or usual
    return [own[each] if each < len(own) else of_all for each in dataset.folders]


def largest_batch(config: RunConfig, dataset: CachedDataset) -> int:
    """So many of the largest samples take as much memory as the largest pass.

    Folders of small images may have larger batches than others.

    Args:
        config: The run file.
        dataset: The encoded samples.
    """
    areas = [bucket.width * bucket.height for bucket in dataset.buckets]
    sizes = batch_sizes(config, dataset)
    most = max(area * size for area, size in zip(areas, sizes, strict=True))
    return -(-most // max(areas))
