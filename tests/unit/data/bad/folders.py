"""Bad input in metadata files, Hugging Face's datasets, several folders and their settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.bad_input import BadInput, Outcome, write_image, write_pair
from trainer_core.config import DatasetSection, RunConfig
from trainer_core.config.problems import check_config
from trainer_core.data.paces import sample_paces
from trainer_core.types import Sample


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


def _no_parquet(folder: Path) -> DatasetSection:
    pytest.importorskip("pyarrow")
    return _file("metadata.parquet", "image,text\na.png,c\n")(folder)


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


def _test_part(folder: Path) -> DatasetSection:
    for part in ("train", "test"):
        write_image(folder / part / "a.png")
        (folder / part / "metadata.csv").write_text("file_name,text\na.png,c\n")
    return _settings(folder)


def _all_held_out(folder: Path) -> DatasetSection:
    write_image(folder / "validation" / "a.png")
    (folder / "validation" / "metadata.csv").write_text("file_name,text\na.png,c\n")
    return _settings(folder)


def _folders(*folders: Mapping[str, Any], inside: bool = False, **values: Any):
    """A folder ``own`` with an image, and further ones with images."""

    def make(folder: Path) -> DatasetSection:
        write_pair(folder / "own" / "a.png")
        further = []
        for each in folders:
            path = folder / ("own" if inside else "") / each["path"]
            if each["path"] not in {"absent", "own"}:
                write_pair(path / "b.png")
            further.append(dict(each) | {"path": str(path)})
        return _settings(folder / "own", folders=further, **values)

    return make


def _one_with_controls(folder: Path) -> DatasetSection:
    settings = _folders({"path": "more", "role": "validation"})(folder)
    write_image(folder / "more" / "b_control.png")
    return settings


def _checked(values: Mapping[str, Any]) -> Outcome:
    check_config(RunConfig.model_validate({"dataset": values}))
    return Outcome(())


def _paced(sample: Sample) -> Outcome:
    sample_paces([sample], DatasetSection(path="own"))
    return Outcome(())


def _sample(folder: Path) -> Sample:
    return Sample("b.png", folder / "b.png", "", 8, 8, folder=3)


_TWO = ("a.png", "b.png")

CASES = [
    BadInput(
        "jsonl bad line",
        _file("metadata.jsonl", '{"image": "a.png", "text": "c"}\n{"im'),
        "error",
        ["metadata.jsonl line 2", "no JSON"],
    ),
    BadInput(
        "jsonl of lists",
        _file("metadata.jsonl", '["a.png", "c"]'),
        "error",
        ["line 1", "no JSON object", "(.jsonl)"],
    ),
    BadInput(
        "jsonl name twice",
        _file("metadata.jsonl", '{"image": "a.png", "image": "b.png"}'),
        "error",
        ["line 1", "comes twice"],
    ),
    BadInput(
        "jsonl nested deeply",
        _file("metadata.jsonl", '{"image": ' + "[" * 100_000),
        "error",
        ["line 1", "nested too deeply"],
    ),
    BadInput(
        "jsonl other encoding",
        _file("metadata.jsonl", '{"image": "ä.png"}'.encode("cp1252")),
        "error",
        ["metadata.jsonl", "not UTF-8"],
    ),
    BadInput("metadata empty", _file("metadata.jsonl", "\n\n"), "error", ["no rows"]),
    BadInput("metadata is a folder", _linked_table, "error", ["has no metadata file"]),
    BadInput(
        "metadata without image column",
        _file("metadata.csv", "id,text\n1,c\n"),
        "error",
        ["no column for the image", "id, text", "file_name"],
    ),
    BadInput(
        "csv wrong number of columns",
        _file("metadata.csv", "image,text\na.png,one, two\n"),
        "error",
        ["metadata.csv line 2 has 3 columns, not 2"],
    ),
    BadInput(
        "csv open quote",
        _file("metadata.csv", 'image,text\na.png,"open\nb.png,c\n', _TWO),
        "error",
        ["metadata.csv line 2", "no csv"],
    ),
    BadInput(
        "csv column twice",
        _file("metadata.csv", "image,text,text\na.png,c,d\n"),
        "error",
        ["names text twice"],
    ),
    BadInput(
        "csv in utf-16",
        _file("metadata.csv", "image,text\na.png,c\n".encode("utf-16")),
        "error",
        ["metadata.csv", "not UTF-8"],
    ),
    BadInput(
        "csv columns nobody reads",
        _file("metadata.csv", "image;text;width\na.png;c;32\n"),
        "warning",
        ["column(s) that are not read: 'width'"],
    ),
    BadInput(
        "csv two columns for one",
        _file("metadata.csv", "image,text,caption\na.png,c,d\n"),
        "warning",
        ["column 'text' is not read, because 'caption' is"],
    ),
    BadInput(
        "parquet damaged",
        _parquet([{"image": "a.png", "text": "c" * 90}], cut=8),
        "error",
        ["metadata.parquet", "cannot be read"],
    ),
    BadInput(
        "parquet is text",
        _no_parquet,
        "error",
        ["metadata.parquet", "cannot be read"],
    ),
    BadInput(
        "parquet with images inside",
        _parquet([{"image": {"bytes": b"x", "path": "a.png"}, "text": "c"}]),
        "error",
        ["column image holds the images themselves", "image folder"],
    ),
    BadInput(
        "two metadata files",
        _two_tables,
        "error",
        ["metadata.jsonl and metadata.csv", "dataset.metadata"],
    ),
    BadInput(
        "metadata named and absent",
        _rows({}, metadata="list.csv"),
        "error",
        ["dataset.metadata: list.csv", "not in the folder"],
    ),
    BadInput(
        "metadata named outside",
        _rows({}, metadata="../list.csv"),
        "error",
        ["dataset.metadata", "leads out of the folder"],
    ),
    BadInput(
        "metadata of another type",
        _rows({}, metadata="a.png"),
        "error",
        ["dataset.metadata: a.png ends in .png", ".jsonl, .csv, .parquet"],
    ),
    BadInput(
        "row leads out",
        _rows({"image": "../a.png"}),
        "error",
        ["line 1", "../a.png leads out of the dataset folder"],
    ),
    BadInput(
        "row with absolute path",
        _rows({"image": "/etc/passwd"}),
        "error",
        ["line 1", "/etc/passwd leads out"],
    ),
    BadInput("row with NUL", _rows({"image": "a\0.png"}), "error", ["line 1", "is not there"]),
    BadInput(
        "row without file",
        _rows({}, {"image": "gone.png"}, missing_image="skip"),
        "left_out",
        ["line 2", "gone.png is not there"],
    ),
    BadInput(
        "row without file stops",
        _rows({}, {"image": "gone.png"}),
        "error",
        ["line 2", "gone.png", "dataset.missing_image"],
    ),
    BadInput(
        "row in other case",
        _rows({"image": "A.PNG"}),
        "error",
        ["a.png is", "upper and lower case"],
    ),
    BadInput(
        "row twice",
        _rows({}, {"caption": "other"}),
        "left_out",
        ["line 2", "a.png stands in metadata.jsonl line 1 already"],
    ),
    BadInput(
        "image in no row",
        _rows({}, images=_TWO),
        "left_out",
        ["1 image(s)", "does not list: b.png"],
        lost=["b.png"],
    ),
    BadInput(
        "row without caption",
        _rows({"caption": None}),
        "error",
        ["line 1", "no caption", "dataset.missing_caption"],
    ),
    BadInput(
        "row with empty caption",
        _rows({}, {"image": "b.png", "caption": " "}, images=_TWO, missing_caption="skip"),
        "left_out",
        ["line 2", "is empty"],
        lost=["b.png"],
    ),
    BadInput(
        "row with number as caption",
        _rows({"caption": 7}),
        "error",
        ["line 1", "caption is 7, not a text"],
    ),
    BadInput(
        "row with repeats of zero",
        _rows({"repeats": 0}),
        "error",
        ["line 1", "repeats is 0", "at least 1"],
    ),
    BadInput(
        "row with half a repeat",
        _rows({"repeats": 1.5}),
        "error",
        ["line 1", "repeats is 1.5", "a whole number"],
    ),
    BadInput(
        "row with endless repeats",
        _rows({"repeats": 10**400}),
        "error",
        ["line 1", "repeats is 1000", "at most 10000"],
    ),
    BadInput(
        "row with weight below zero",
        _rows({"weight": -1}),
        "error",
        ["line 1", "weight is -1", "at least 0"],
    ),
    BadInput(
        "row with weight that is no number",
        _rows({"weight": float("nan")}),
        "error",
        ["line 1", "weight is nan"],
    ),
    BadInput(
        "row with true as weight", _rows({"weight": True}), "error", ["line 1", "weight is True"]
    ),
    BadInput(
        "row with control that is not there",
        _rows({"control": "gone.png"}, missing_control="error"),
        "error",
        ["line 1", "gone.png is not there", "dataset.missing_control"],
    ),
    BadInput(
        "row without control",
        _rows(
            {"control": "b.png"},
            {"image": "c.png"},
            images=("a.png", "b.png", "c.png"),
            missing_control="skip",
        ),
        "left_out",
        ["line 2", "c.png has no control image"],
        lost=["c.png"],
    ),
    BadInput(
        "row with a gap in its controls",
        _rows({"control_1": "", "control_2": "b.png"}, images=_TWO),
        "error",
        ["line 1", "control_2 names a control image, and control_1 before it does not"],
    ),
    BadInput(
        "row with mask that is not there",
        _rows({"mask": "gone.png"}),
        "error",
        ["line 1", "gone.png is not there"],
    ),
    BadInput(
        "row with mask of another shape",
        _rows({"mask": "b.png"}, images=_TWO),
        "error",
        ["line 1", "b.png has 32 x 64"],
    ),
    BadInput(
        "row without mask where each needs one",
        _rows({}, mask={"source": "files"}),
        "error",
        ["line 1 names no mask", "dataset.mask.source"],
    ),
    BadInput(
        "row with a type that is not read",
        _rows({}, {"image": "b.gif"}, images=("a.png", "b.gif"), unreadable="skip"),
        "left_out",
        ["b.gif", "of a type that is not read"],
        lost=["b.gif"],
    ),
    BadInput(
        "layout metadata without file",
        _file("notes.md", "nothing", layout="metadata"),
        "error",
        ["dataset.layout is metadata", "has no metadata file"],
    ),
    BadInput("saved to disk", _saved, "error", ["save_to_disk", "image folder"]),
    BadInput(
        "parquet parts with images",
        _parquet_parts,
        "error",
        ["train-00000-of-00001.parquet", "image folder"],
    ),
    BadInput(
        "test part",
        _test_part,
        "left_out",
        ["the folder test with 1 image(s)"],
        lost=["test/a.png"],
    ),
    BadInput("everything held out", _all_held_out, "error", ["held out", "is trained"]),
    BadInput(
        "folder absent",
        _folders({"path": "absent"}),
        "error",
        ["dataset.folders[0].path", "does not exist"],
    ),
    BadInput(
        "folder twice",
        _folders({"path": "own"}),
        "error",
        ["dataset.folders[0].path", "is dataset.path as well"],
    ),
    BadInput(
        "folder inside another",
        _folders({"path": "more"}, inside=True),
        "error",
        ["dataset.folders[0].path", "trained twice", "no image in common"],
    ),
    BadInput(
        "image trained and held out",
        _folders({"path": "held", "role": "validation"}, inside=True),
        "error",
        ["dataset.folders[0].path", "trained and measured"],
    ),
    BadInput(
        "one folder with controls",
        _one_with_controls,
        "error",
        ["dataset.path and dataset.folders[0].path", "has control images"],
    ),
    BadInput(
        "share of one image",
        _folders(validation={"share": 0.5}),
        "warning",
        ["dataset.validation.share", "one image"],
    ),
    BadInput(
        "folders without path",
        lambda folder: {"folders": [{"path": "a"}]},
        "error",
        ["dataset.folders names 1 folder(s) and dataset.path is empty"],
        run=_checked,
    ),
    BadInput(
        "metadata in another layout",
        lambda folder: {"path": "a", "metadata": "a.csv", "layout": "flat"},
        "error",
        ["dataset.metadata is set", "layout is flat"],
        run=_checked,
    ),
    BadInput(
        "cache of more folders",
        _sample,
        "error",
        ["dataset.folders", "4 folders", "names 1"],
        run=_paced,
    ),
]
