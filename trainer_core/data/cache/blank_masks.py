"""Masks of a finished cache under which nothing of an image would be trained."""

from __future__ import annotations

from ...config.folders import MaskSection
from ..masks import counts_nothing, may_count_nothing, nothing_counts_error
from .cache_file import read_entry
from .cached_dataset import CachedDataset


def require_counting_masks(dataset: CachedDataset, settings: MaskSection) -> None:
    """Refuse weights under which nothing of some image counts.

    Masks are read where a weight is 0, and then all of them.

    Raises:
        DatasetError: Naming the first such image.
        StorageError: When a mask's file is damaged.
    """
    if not may_count_nothing(settings):
        return
    for item in dataset.items:
        if item.mask is not None and counts_nothing(read_entry(item.mask)["mask"], settings):
            raise nothing_counts_error(item.name)
