"""Bad input that is meant to do harm: endless rows, links to what is held out, broken letters."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.fixtures.bad_input import (
    BadInput,
    Outcome,
    error,
    left_out,
    link,
    scanned,
    warning,
    write_image,
    write_pair,
)
from trainer_core.config import DatasetSection
from trainer_core.config.run_file_problems import check_config
from trainer_core.data.repeats_and_weights import repeats_and_weights
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.families.run_files import load_config

_Make = Callable[[Path], DatasetSection]


def _table(content: str, name: str = "metadata.jsonl", **values: Any) -> _Make:
    def make(folder: Path) -> DatasetSection:
        write_image(folder / "a.png")
        (folder / name).write_text(content, encoding="utf-8")
        return DatasetSection(path=str(folder), **values)

    return make


def _rows(id: str, content: str, told: str) -> BadInput:
    return error(id, _table(content), told)


def _parquet(rows: int, image: str, caption: str) -> _Make:
    """A short file that unpacks to very much: one value of a dictionary in every row."""

    def make(folder: Path) -> DatasetSection:
        pytest.importorskip("pyarrow")
        import pyarrow as arrow
        from pyarrow import parquet

        write_image(folder / "a.png")
        places = arrow.array([0] * rows, arrow.int32())
        columns = {
            name: arrow.DictionaryArray.from_arrays(places, arrow.array([value], arrow.string()))
            for name, value in (("image", image), ("caption", caption))
        }
        path = folder / "metadata.parquet"
        parquet.write_table(arrow.table(columns), path, store_schema=False)
        assert path.stat().st_size < 2**20
        return DatasetSection(path=str(folder))

    return make


def _home(folder: Path) -> DatasetSection:
    write_pair(folder / "a.png")
    write_pair(folder / "own" / "b.png")
    home = Path("~").expanduser()
    written = "~/" + os.path.relpath(folder, home)
    held = [{"path": f"{written}/own", "role": "validation"}]
    return DatasetSection.model_validate({"path": written, "folders": held})


def _linked(whole_folder: bool) -> _Make:
    def make(folder: Path) -> DatasetSection:
        write_pair(folder / "own" / "deep" / "a.png")
        write_pair(folder / "own" / "b.png")
        held = folder / "held"
        held.mkdir()
        for name in ("deep",) if whole_folder else ("b.png", "b.txt"):
            link(held / name, folder / "own" / name)
        folders = [{"path": str(held), "role": "validation"}]
        return DatasetSection.model_validate({"path": str(folder / "own"), "folders": folders})

    return make


def _jpeg(body: bytes, times: int = 1) -> _Make:
    """A JPEG with parts of tags."""

    def make(folder: Path) -> DatasetSection:
        path = folder / "a.jpg"
        Image.new("RGB", (32, 32)).save(path)
        (folder / "a.txt").write_text("a thing")
        content = path.read_bytes()
        part = b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
        path.write_bytes(content[:2] + part * times + content[2:])
        return DatasetSection(path=str(folder))

    return make


_TAGS = b"Exif\0\0II*\0\x08\0\0\0"
_LONG = (_TAGS + b"\xff\xff").ljust(65533, b"\0")
_TURNED_OFTEN = _TAGS + b"\x88\x13" + b"\x12\x01\x03\0\xff\xff\xff\xff\x08\0\0\0" * 5000


def _choices(folder: Path) -> DatasetSection:
    write_pair(folder / "a.png", "{a|b}" * 150_000)
    return DatasetSection.model_validate({"path": str(folder), "captions": {"wildcards": True}})


def _device_folder(folder: Path) -> DatasetSection:
    if not Path("/dev/null").exists():
        pytest.skip("this system has no devices")
    write_pair(folder / "a.png")
    for name in ("null", "zero"):
        (folder / f"{name}.png").symlink_to(f"/dev/{name}")
    return DatasetSection(path=str(folder))


def _named_as_page(folder: Path) -> DatasetSection:
    try:
        write_pair(folder / "\u202egnp.<img src=x onerror=alert(1)>.png")
    except OSError:
        pytest.skip("this system takes no such names")
    return DatasetSection(path=str(folder))


def _repeated(folder: Path) -> DatasetSection:
    row = {"image": "a.png", "caption": "c", "repeats": 10000}
    return _table(json.dumps(row), num_repeats=10000)(folder)


def _paced(settings: DatasetSection) -> Outcome:
    found = scan_all(settings)
    repeats_and_weights(found.samples, settings)
    return scanned(settings)


def _run_file(folders: str, told: str = "dataset.folders") -> BadInput:
    """A run file whose further folders are nonsense."""

    def make(folder: Path) -> Path:
        path = folder / "run.yaml"
        path.write_text(f"dataset: {{path: x, folders: {folders}}}\n", encoding="utf-8")
        return path

    return error(f"run file: {folders}", make, told, run=_loaded, complete=False)


def _loaded(path: Path) -> Outcome:
    check_config(load_config(path))
    return Outcome(())


def _row(name: str, value: str) -> str:
    return f'{{"image": "a.png", "caption": "c", "{name}": {value}}}'


_HALF = '{"image": "a.png", "caption": "a \\ud800"}'
_WIDE = "image,text" + "".join(f",c{number}" for number in range(20_000)) + "\n"

RUN_FILES = [
    ("7",),
    ("[null]",),
    ("[[]]",),
    ("{path: y}",),
    ("[{path: y, folders: [{path: z}]}]",),
    ("[{path: y, role: hold}]", "role"),
    ("[{path: y, weight: .nan}]", "weight"),
    ("&a [*a]", "run.yaml"),
    ("[{path: ''}]", "path"),
]
CASES = [
    _rows("jsonl of millions of rows", "{}\n" * 2_000_001, "more than 2000000 rows ... (.jsonl)"),
    _rows("jsonl of nothing but faults", "{\n" * 200_000, "10000 of its lines ... line 1"),
    _rows("rows that say nothing", '{"image": 3}\n' * 20_000, "10000 of its lines ... line 1"),
    error("csv of many columns", _table(_WIDE, "metadata.csv"), "more than 10000 columns"),
    error(
        "parquet that unpacks to gigabytes",
        _parquet(20_000, "a.png", "x" * 10**5),
        "unpacks to more than",
        slow=True,
    ),
    error(
        "parquet of millions of rows", _parquet(3 * 10**6, "a.png", "c"), "more than 2000000 rows"
    ),
    _rows("row with half a letter", _HALF, "metadata.jsonl line 1 ... letter 3 ... \\ud800"),
    error("json with half a letter", _table(_HALF, "a.json"), "a.json ... letter 3"),
    _rows("row of infinite weight", _row("weight", "1e999"), "line 1 ... weight is inf"),
    _rows(
        "row with a number of many digits",
        _row("repeats", "9" * 5000),
        "line 1 ... not readable JSON",
    ),
    error("repeats times repeats", _repeated, "100000000 times", run=_paced),
    error("held-out folder below the home", _home, "trained and measured"),
    error("held-out image is a link", _linked(False), "trained and measured"),
    error("held-out folder is a link", _linked(True), "trained and measured"),
    error("jpeg with endless tags", _jpeg(_LONG, 520), "a.jpg ... behind more than"),
    warning("jpeg turned five thousand times", _jpeg(_TURNED_OFTEN)),
    error("choices in their thousands", _choices, "a.png ... more than 2000"),
    left_out("devices as images", _device_folder, "null.png ... zero.png"),
    warning("name that is HTML and turns text", _named_as_page),
    *(_run_file(*each) for each in RUN_FILES),
]
