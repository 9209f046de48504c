"""Metadata files: what other trainers write is read, and says what is trained."""

import csv
import json

import pytest

from tests.fixtures.scanned_folder import settings
from tests.fixtures.tables import table
from trainer_core.data.sources.metadata_columns import COLUMNS, find_columns
from trainer_core.data.sources.metadata_rows import KnownFiles
from trainer_core.data.sources.scan_folder import scan


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def write_csv(path, rows, delimiter=",", encoding="utf-8"):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, names, delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path, rows):
    pytest.importorskip("pyarrow")
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist(rows), path)


WRITERS = {".jsonl": write_jsonl, ".csv": write_csv, ".parquet": write_parquet}
ROWS = [
    {"image": "a.png", "caption": 'one, "two"\nand three', "repeats": 3, "weight": 0.5},
    {"image": "sub/b.png", "caption": "äöü; 日本", "repeats": 1, "weight": 2},
]


@pytest.mark.parametrize("ending", WRITERS)
def test_each_format_says_the_same(tmp_path, paint, ending):
    for number, row in enumerate(ROWS):
        paint(tmp_path / row["image"], 40 + number, 30)
    WRITERS[ending](tmp_path / f"metadata{ending}", ROWS)
    found = scan(settings(tmp_path, trigger_word="zorb"))
    assert [(s.name, s.caption, s.repeats, s.weight, s.width) for s in found.samples] == [
        ("a.png", 'zorb, one, "two"\nand three', 3, 0.5, 40),
        ("sub/b.png", "zorb, äöü; 日本", 1, 2.0, 41),
    ]
    assert found.problems == ()


@pytest.mark.parametrize(("row", "controls"), table(__file__, "rows_of_peers").values())
def test_what_other_trainers_write_is_read(tmp_path, paint, row, controls):
    for image in ("a.png", "x.png", "y.png")[: controls + 1]:
        paint(tmp_path / image)
    write_jsonl(tmp_path / "metadata.jsonl", [row])
    (sample,) = scan(settings(tmp_path)).samples
    assert (sample.name, sample.caption) == ("a.png", "c")
    assert [path.name for path in sample.controls] == ["x.png", "y.png"][:controls]


def test_every_name_of_a_column_is_found_and_means_one_thing():
    names = [name for accepted in COLUMNS.values() for name in accepted]
    assert len(names) == len(set(names))
    for what, accepted in COLUMNS.items():
        for name in accepted:
            found = find_columns([name.upper(), "other"])
            assert found.unread == ("other",)
            assert found.read == {name.upper()}
            assert (what == "controls") == bool(found.controls)
    both = find_columns(["text", "caption", "control_2", "control", "control_1"])
    assert both.single == {"caption": "caption"}
    assert both.doubled == (("text", "caption"),)
    assert both.controls == ((None, "control"), (1, "control_1"), (2, "control_2"))


def test_a_caption_that_the_file_does_not_have_is_read_beside_the_image(tmp_path, captioned, paint):
    captioned(tmp_path / "a.png", "from the file beside")
    captioned(tmp_path / "b.png", "not this one")
    write_jsonl(
        tmp_path / "metadata.jsonl", [{"image": "a.png"}, {"image": "b.png", "text": "row"}]
    )
    assert [s.caption for s in scan(settings(tmp_path)).samples] == ["from the file beside", "row"]


def test_several_captions_become_texts_and_masks_are_found(tmp_path, paint):
    for name in ("a.png", "m.png"):
        paint(tmp_path / name)
    row = {"image": "a.png", "caption": ["one", "two"], "mask": "m.png"}
    write_jsonl(tmp_path / "metadata.jsonl", [row])
    (sample,) = scan(settings(tmp_path)).samples
    assert sample.captions == ("one", "two")
    assert sample.mask == tmp_path / "m.png"
    (sample,) = scan(settings(tmp_path, mask={"source": "none"})).samples
    assert sample.mask is None


def test_the_parts_of_a_hugging_face_folder_have_roles(tmp_path, paint):
    for part, count in (("train", 2), ("validation", 1), ("test", 3)):
        for number in range(count):
            paint(tmp_path / part / f"{number}.png")
        rows = [{"file_name": f"{number}.png", "text": part} for number in range(count)]
        write_jsonl(tmp_path / part / "metadata.jsonl", rows)
    found = scan(settings(tmp_path))
    assert [(s.name, s.caption, s.validation) for s in found.samples] == [
        ("train/0.png", "train", False),
        ("train/1.png", "train", False),
        ("validation/0.png", "validation", True),
    ]
    assert "the folder test with 3 image(s)" in " ".join(found.problems)


@pytest.mark.parametrize(("written", "found"), table(__file__, "paths_in_a_folder"))
def test_a_path_stays_in_the_folder(tmp_path, written, found):
    known = KnownFiles(tmp_path, ["a.png", "sub/b.png", "\u00fc.png"])
    name, reason = known.find(written.format(root=tmp_path))
    assert (name or None) == found
    assert ("leads out" in reason) == (found is None)
    below = KnownFiles(tmp_path, ["a.png", "train/c.png"], "train/")
    assert below.find("c.png") == ("train/c.png", "")
    assert below.find("../a.png") == ("a.png", "")
    assert below.find(f"{tmp_path.name}/train/c.png") == ("train/c.png", "")
    assert below.find("train/c.png") == ("train/c.png", "")
