"""Batches of folders, and what they take."""

from pathlib import Path

import pytest

from trainer_core.config import RunConfig
from trainer_core.data.cache.cache_file import make_entry
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.training.step.batch_sizes import batch_sizes, with_largest_batch
from trainer_core.types import Bucket


def world(folders, sizes, **dataset):
    config = RunConfig.model_validate(
        {"dataset": {"path": "a", "folders": folders, **dataset}, "training": {"batch_size": 2}}
    )
    entry = make_entry(Path("x"), "text", "a")
    items = [
        CachedItem(f"{n}.png", Bucket(side, side), (), entry, (), entry, entry, folder=n)
        for n, side in enumerate(sizes)
    ]
    return config, CachedDataset(items)


@pytest.mark.parametrize(
    ("folders", "dataset", "sizes", "most"),
    [
        ([{"path": "b"}], {}, [2, 2], 2),
        ([{"path": "b", "batch_size": 8}], {}, [2, 8], 2),
        ([{"path": "b", "batch_size": 16}], {}, [2, 16], 4),
        ([{"path": "b", "batch_size": 1}], {"batch_size": 3}, [3, 1], 3),
        ([{"path": "b"}], {"batch_size": 3}, [3, 3], 3),
    ],
)
def test_each_folder_has_its_batches_and_memory_is_that_of_the_largest(
    folders, dataset, sizes, most
):
    config, cached = world(folders, [1024, 512], **dataset)
    assert batch_sizes(config, cached) == sizes
    assert with_largest_batch(config, cached).training.batch_size == most
    assert config.training.batch_size == 2
