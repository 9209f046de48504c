"""Bad input in metadata files, Hugging Face's datasets, several folders and their settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.bad_input import (
    Outcome,
    error,
    left_out,
    warning,
    write_image,
    write_pair,
)
from trainer_core.config import DatasetSection, RunConfig
from trainer_core.data.cache.cache_file import make_entry
from trainer_core.data.cache.cached_dataset import CachedDataset, CachedItem
from trainer_core.training.run_batches import require_trained
from trainer_core.types import Bucket


def _settings(folder: Path, **values: Any) -> DatasetSection:
    return DatasetSection.model_validate({"path": str(folder), **values})


def _file(
    name: str, content: str | bytes, images: tuple[str, ...] = ("a.png",), **values: Any
) -> Callable[[Path], DatasetSection]:
    """A folder with a metadata file and images."""

    def make(folder: Path) -> DatasetSection:
        for number, image in enumerate(images):
            write_image(folder / image, 32, 32 + 32 * number)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(raw)
        return _settings(folder, **values)

    return make


def _rows(*rows: Mapping[str, Any], images: tuple[str, ...] = ("a.png",), **values: Any):
    text = "\n".join(json.dumps({"image": "a.png", "caption": "c"} | row) for row in rows)
    return _file("metadata.jsonl", text, images, **values)


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
        return _settings(folder)

    return make


def _two_tables(folder: Path) -> DatasetSection:
    (folder / "metadata.csv").write_text("image,text\na.png,c\n")
    return _rows({})(folder)


def _linked_table(folder: Path) -> DatasetSection:
    settings = _rows({})(folder)
    (folder / "metadata.jsonl").rename(folder / "real.txt")
    (folder / "metadata.jsonl").mkdir()
    return settings.model_copy(update={"layout": "metadata"})


def _saved(folder: Path) -> DatasetSection:
    (folder / "train").mkdir()
    (folder / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (folder / "train" / "data-00000-of-00001.arrow").write_bytes(b"ARROW1")
    (folder / "train" / "state.json").write_text("{}")
    return _settings(folder)


def _parquet_parts(folder: Path) -> DatasetSection:
    (folder / "data").mkdir()
    (folder / "data" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    return _settings(folder)


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


_TWO = ("a.png", "b.png")

CASES = [
    error(
        "jsonl bad line",
        _file("metadata.jsonl", '{"image": "a.png", "text": "c"}\n{"im'),
        "metadata.jsonl line 2 ... no JSON",
    ),
    error(
        "jsonl of lists",
        _file("metadata.jsonl", '["a.png", "c"]'),
        "line 1 ... no JSON object ... (.jsonl)",
    ),
    error(
        "jsonl name twice",
        _file("metadata.jsonl", '{"image": "a.png", "image": "b.png"}'),
        "line 1 ... comes twice",
    ),
    error(
        "jsonl nested deeply",
        _file("metadata.jsonl", '{"image": ' + "[" * 100_000),
        "line 1 ... nested too deeply",
    ),
    error(
        "jsonl other encoding",
        _file("metadata.jsonl", '{"image": "ä.png"}'.encode("cp1252")),
        "metadata.jsonl ... not UTF-8",
    ),
    error("metadata empty", _file("metadata.jsonl", "\n\n"), "no rows"),
    error("metadata is a folder", _linked_table, "has no metadata file"),
    error(
        "metadata without image column",
        _file("metadata.csv", "id,text\n1,c\n"),
        "no column for the image ... id, text ... file_name",
    ),
    error(
        "csv wrong number of columns",
        _file("metadata.csv", "image,text\na.png,one, two\n"),
        "metadata.csv line 2 has 3 columns, not 2",
    ),
    error(
        "csv open quote",
        _file("metadata.csv", 'image,text\na.png,"open\nb.png,c\n', _TWO),
        "metadata.csv line 2 ... no csv",
    ),
    error(
        "csv column twice",
        _file("metadata.csv", "image,text,text\na.png,c,d\n"),
        "names text twice",
    ),
    warning(
        "csv columns nobody reads",
        _file("metadata.csv", "image;text;width\na.png;c;32\n"),
        "column(s) that are not read: 'width'",
    ),
    warning(
        "csv two columns for one",
        _file("metadata.csv", "image,text,caption\na.png,c,d\n"),
        "column 'text' is not read, because 'caption' is",
    ),
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
        "metadata named and absent",
        _rows({}, metadata="list.csv"),
        "dataset.metadata: list.csv ... not in the folder",
    ),
    error(
        "metadata named outside",
        _rows({}, metadata="../list.csv"),
        "dataset.metadata ... leads out of the folder",
    ),
    error(
        "metadata of another type",
        _rows({}, metadata="a.png"),
        "dataset.metadata: a.png ends in .png ... .jsonl, .csv, .parquet",
    ),
    error(
        "row leads out",
        _rows({"image": "../a.png"}),
        "line 1 ... ../a.png leads out of the dataset folder",
    ),
    error("row with NUL", _rows({"image": "a\0.png"}), "line 1 ... is not there"),
    left_out(
        "row without file",
        _rows({}, {"image": "gone.png"}, missing_image="skip"),
        "line 2 ... gone.png is not there",
    ),
    error("row in other case", _rows({"image": "A.PNG"}), "a.png is ... upper and lower case"),
    left_out(
        "row twice",
        _rows({}, {"caption": "other"}),
        "line 2 ... a.png stands in metadata.jsonl line 1 already",
    ),
    left_out(
        "image in no row",
        _rows({}, images=_TWO),
        "1 image(s) ... does not list: b.png",
        lost=["b.png"],
    ),
    error(
        "row without caption",
        _rows({"caption": None}),
        "line 1 ... no caption ... dataset.missing_caption",
    ),
    left_out(
        "row with empty caption",
        _rows({}, {"image": "b.png", "caption": " "}, images=_TWO, missing_caption="skip"),
        "line 2 ... is empty",
        lost=["b.png"],
    ),
    error(
        "row with number as caption", _rows({"caption": 7}), "line 1 ... caption is 7, not a text"
    ),
    error(
        "row with repeats of zero", _rows({"repeats": 0}), "line 1 ... repeats is 0 ... at least 1"
    ),
    error(
        "row with endless repeats",
        _rows({"repeats": 10**400}),
        "line 1 ... repeats is 1000 ... at most 10000",
    ),
    error(
        "row with weight below zero",
        _rows({"weight": -1}),
        "line 1 ... weight is -1 ... at least 0",
    ),
    error(
        "row with weight that is no number",
        _rows({"weight": float("nan")}),
        "line 1 ... weight is nan",
    ),
    error(
        "row with control that is not there",
        _rows({"control": "gone.png"}, missing_control="error"),
        "line 1 ... gone.png is not there ... dataset.missing_control",
    ),
    left_out(
        "row without control",
        _rows(
            {"control": "b.png"},
            {"image": "c.png"},
            images=("a.png", "b.png", "c.png"),
            missing_control="skip",
        ),
        "line 2 ... c.png has no control image",
        lost=["c.png"],
    ),
    error(
        "row with a gap in its controls",
        _rows({"control_1": "", "control_2": "b.png"}, images=_TWO),
        "line 1 ... control_2 names a control image, and control_1 before it does not",
    ),
    error(
        "row with mask that is not there",
        _rows({"mask": "gone.png"}),
        "line 1 ... gone.png is not there",
    ),
    error(
        "row with mask of another shape",
        _rows({"mask": "b.png"}, images=_TWO),
        "line 1 ... b.png has 32 x 64",
    ),
    error(
        "row without mask where each needs one",
        _rows({}, mask={"source": "files"}),
        "line 1 names no mask ... dataset.mask.source",
    ),
    left_out(
        "row with a type that is not read",
        _rows({}, {"image": "b.gif"}, images=("a.png", "b.gif"), unreadable="skip"),
        "b.gif ... of a type that is not read",
        lost=["b.gif"],
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
