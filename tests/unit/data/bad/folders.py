"""Bad input in metadata files, Hugging Face's datasets, several folders and their settings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.bad_input import Outcome, error, write_image, write_pair
from tests.fixtures.scanned_folder import settings
from trainer_core.config import DatasetSection, RunConfig
from trainer_core.data.cache.cache_file import make_entry
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.training.setup.step_inputs import require_trained
from trainer_core.types import Bucket


def _table(content: bytes) -> Callable[[Path], DatasetSection]:
    """A folder with a metadata file and an image."""

    def make(folder: Path) -> DatasetSection:
        write_image(folder / "a.png")
        (folder / "metadata.jsonl").write_bytes(content)
        return settings(folder)

    return make


_ONE = _table(b'{"image": "a.png", "caption": "c"}')


def _parquet(rows: list[dict[str, Any]], cut: int = 0) -> Callable[[Path], DatasetSection]:
    def make(folder: Path) -> DatasetSection:
        pytest.importorskip("pyarrow")  # no host has to have it
        from pyarrow import Table, parquet

        write_image(folder / "a.png")
        path = folder / "metadata.parquet"
        parquet.write_table(Table.from_pylist(rows), path)
        if cut:
            content = bytearray(path.read_bytes())
            content[cut : cut + 40] = b"\xff" * 40
            path.write_bytes(content)
        return settings(folder)

    return make


def _two_tables(folder: Path) -> DatasetSection:
    (folder / "metadata.csv").write_text("image,text\na.png,c\n")
    return _ONE(folder)


def _linked_table(folder: Path) -> DatasetSection:
    found = _ONE(folder)
    (folder / "metadata.jsonl").rename(folder / "real.txt")
    (folder / "metadata.jsonl").mkdir()
    return found.model_copy(update={"layout": "metadata"})


def _saved(folder: Path) -> DatasetSection:
    (folder / "train").mkdir()
    (folder / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (folder / "train" / "data-00000-of-00001.arrow").write_bytes(b"ARROW1")
    (folder / "train" / "state.json").write_text("{}")
    return settings(folder)


def _parquet_parts(folder: Path) -> DatasetSection:
    (folder / "data").mkdir()
    (folder / "data" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    return settings(folder)


def _empty_validation(folder: Path) -> DatasetSection:
    write_pair(folder / "own" / "a.png")
    (folder / "more").mkdir()
    held = {"path": str(folder / "more"), "role": "validation"}
    return DatasetSection(path=str(folder / "own"), folders=[held])


def _all_trained(path: Path) -> Outcome:
    entry = make_entry(path, "text", "a")
    item = CachedItem("a.png", Bucket(32, 32), (), entry, (), entry, entry, validation=True)
    require_trained(RunConfig(), CachedDataset([item]))
    return Outcome(())


CASES = [
    error(
        "jsonl nested deeply",
        _table(b'{"image": ' + b"[" * 100_000),
        "line 1 ... nested too deeply",
    ),
    error(
        "jsonl other encoding",
        _table('{"image": "ä.png"}'.encode("cp1252")),
        "metadata.jsonl ... not UTF-8",
    ),
    error("metadata is a folder", _linked_table, "has no metadata file"),
    error(
        "parquet damaged",
        _parquet([{"image": "a.png", "text": "c" * 90}], cut=8),
        "metadata.parquet ... cannot be read",
    ),
    error(
        "parquet with images inside",
        _parquet([{"image": {"bytes": b"x", "path": "a.png"}, "text": "c"}]),
        "column image holds the images themselves ... image folder",
    ),
    error(
        "two metadata files", _two_tables, "metadata.jsonl and metadata.csv ... dataset.metadata"
    ),
    error(
        "row with endless repeats",
        _table(json.dumps({"image": "a.png", "repeats": 10**400}).encode()),
        "line 1 ... repeats is 1000 ... at most 10000",
    ),
    error("saved to disk", _saved, "save_to_disk ... image folder"),
    error(
        "parquet parts with images", _parquet_parts, "train-00000-of-00001.parquet ... image folder"
    ),
    error(
        "all images held out",
        lambda folder: folder,
        "all 1 images are held out ... dataset.validation.share",
        run=_all_trained,
    ),
    error("empty validation folder", _empty_validation, "more", complete=False),
]
