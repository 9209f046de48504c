"""Metadata files: jsonl, csv and parquet, read into rows of plain values.

A line that cannot be read is told with its number, and the others are read. Nothing in such a file
is run: parquet is read by pyarrow without Python objects.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import DatasetError
from ...filesystem.file_names import leads_out
from ...filesystem.text_files import LARGEST_LIST, parse_json, read_text
from ...printable import listed, shortened
from .metadata_columns import COLUMNS, find_columns

EXTENSIONS = (".jsonl", ".csv", ".parquet")
USUAL_NAME = "metadata"

BAD_METADATA = "metadata"
"""A line of a metadata file that cannot be used; no setting lets a training leave it out."""

EXPECTED_TABLE = (
    "a metadata file with one image in each line: a JSON object (.jsonl), comma-separated values "
    "under a line of column names (.csv, in UTF-8), or .parquet",
    "Correct the file, export it again, or take it out of the folder to have caption files read.",
)
"""What is expected of a metadata file that cannot be read, and what is to do."""

MOST_ROWS = 2_000_000
"""Rows of a metadata file: twice a million samples, and what a machine's memory holds."""

MOST_COLUMNS = 10_000
MOST_FAULTS = 10_000
"""Lines that cannot be used before the rest is not read: the file is refused in any case."""

_BATCH = 128  # rows of parquet at a time: a short file may unpack to anything
_DELIMITERS = ",;\t|"
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Row:
    """One line: where it stands, as ``line 17``, and column to value."""

    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """What a metadata file holds.

    Attributes:
        faults: Lines that cannot be read, in words, without the file's name.
    """

    names: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def metadata_file(root: Path, name: str | None) -> Path | None:
    """The metadata file of a folder; None where none is named and there is none.

    Args:
        name: ``dataset.metadata``; None looks for the usual names.

    Raises:
        DatasetError: When the one that is named cannot be it, or there are several.
    """
    if name is None:
        found = [
            file for ending in EXTENSIONS if (file := root / f"{USUAL_NAME}{ending}").is_file()
        ]
        if len(found) > 1:
            names = " and ".join(file.name for file in found)
            raise DatasetError(
                f"dataset.path: {root} has {names}",
                "one metadata file",
                "Remove one of them, or name the one to read in dataset.metadata.",
            )
        return found[0] if found else None
    file = root / name
    inside = not leads_out(Path(name))
    if not inside or file.suffix.lower() not in EXTENSIONS or not file.is_file():
        what = "is not in the folder" if inside else "leads out of the folder"
        if inside and file.is_file():
            what = f"ends in {file.suffix or 'nothing'}"
        raise DatasetError(
            f"dataset.metadata: {shortened(name, 200)} {what} ({root})",
            f"a file in the dataset folder that ends in {', '.join(EXTENSIONS)}",
            "Correct dataset.metadata, or leave it out.",
        )
    return file


def read_table(path: Path, extension: str = "") -> Table:
    """Read a metadata file.

    Args:
        extension: What it is; unset: as its name says.

    Raises:
        DatasetError: When it cannot be read at all, or parquet needs a library that is missing.
    """
    readers: Mapping[str, Callable[[Path], Table]] = {
        ".jsonl": _read_jsonl,
        ".csv": _read_csv,
        ".parquet": _read_parquet,
    }
    return readers[(extension or path.suffix).lower()](path)


def refuse_table(path: Path, reason: str) -> DatasetError:
    """The error of a metadata file that cannot be read."""
    return DatasetError(f"the metadata file {path} cannot be read ({reason})", *EXPECTED_TABLE)


def _text(path: Path) -> str:
    return read_text(path, lambda reason: refuse_table(path, reason), LARGEST_LIST)


def _read_jsonl(path: Path) -> Table:
    names: dict[str, None] = {}
    rows: list[Row] = []
    faults: list[str] = []
    text = _text(path)
    _refuse_long(path, text.count("\n"))
    # Not splitlines: a caption may hold a line separator of Unicode.
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.isspace():
            continue
        place = f"line {number}"
        refuse_faulty(path, faults)
        try:
            values = parse_json(line, unique=True)
        except ValueError as error:
            faults.append(f"{place} is not readable JSON: {shortened(str(error), 200)}")
            continue
        if not isinstance(values, dict):
            faults.append(
                f"{place} is not a JSON object: {shortened(line.strip(), _LONGEST_SHOWN)}"
            )
            continue
        names.update(dict.fromkeys(values))
        _refuse_wide(path, len(names))
        rows.append(Row(place, values))
    return Table(tuple(names), rows, faults)


def _read_csv(path: Path) -> Table:
    text = _text(path)
    delimiter = _delimiter(text.lstrip("\n").partition("\n")[0])
    rows: list[Row] = []
    faults: list[str] = []
    names: tuple[str, ...] | None = None
    for number, cells in _csv_lines(text, delimiter, faults):
        _refuse_long(path, len(rows))
        refuse_faulty(path, faults)
        if names is None:
            names = tuple(cell.strip() for cell in cells)
            _refuse_wide(path, len(names))
            twice = sorted(name for name, count in Counter(names).items() if count > 1)
            if twice:
                raise refuse_table(path, f"line {number} names {listed(twice)} twice")
        elif len(cells) != len(names):
            shown = shortened(delimiter.join(cells), _LONGEST_SHOWN)
            faults.append(f"line {number} has {len(cells)} columns, not {len(names)}: {shown}")
        else:
            # An empty cell says nothing.
            values = {name: cell for name, cell in zip(names, cells, strict=True) if cell.strip()}
            rows.append(Row(f"line {number}", values))
    return Table(names or (), rows, faults)


def _csv_lines(text: str, delimiter: str, faults: list[str]) -> Iterator[tuple[int, list[str]]]:
    """The lines that hold something, each with the number of the line that it begins at."""
    # Strict: an open quote would otherwise take the rest of the file for one caption.
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    begins = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            faults.append(f"line {begins} is not readable csv: {error}")
            begins = reader.line_num + 1
            continue
        if any(cell.strip() for cell in cells):
            yield begins, cells
        begins = reader.line_num + 1


def _delimiter(header: str) -> str:
    """What parts the columns: that which makes most names that are known, a comma if none does."""

    def known(delimiter: str) -> int:
        return len(find_columns(_header_cells(header, delimiter)).read)

    return max(_DELIMITERS, key=known)


def _header_cells(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:
        return []


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise DatasetError(
            f"{path} is a parquet file, and pyarrow, which reads it, is not installed",
            "the library pyarrow, or the metadata as .jsonl or .csv",
            "Install it: pip install adapter-trainer[parquet]. Or write the file as .jsonl.",
        ) from error
    if not path.is_file():
        raise refuse_table(path, "it is not an ordinary file")
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            names = tuple(schema.names)
            wanted = [name for name in names if name in find_columns(names).read]
            _refuse_bytes(path, {name: schema.field(name).type for name in wanted}, arrow)
            _refuse_large(path, file.metadata)
            _refuse_wide(path, len(names))
            batches = file.iter_batches(_BATCH, columns=wanted) if wanted else ()
            values = (row for batch in _bounded(path, batches) for row in batch.to_pylist())
            rows = [Row(f"row {number}", _said(row)) for number, row in enumerate(values, 1)]
    except DatasetError:
        raise
    except Exception as error:  # pyarrow raises what it likes on a damaged file
        raise refuse_table(path, shortened(str(error), 200)) from error
    return Table(names, rows)


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says: numbers that are missing come as NaN where pandas wrote the file."""
    return {name: value for name, value in values.items() if value is not None and value == value}


def _refuse_bytes(path: Path, types: Mapping[str, Any], arrow: Any) -> None:
    """Refuse columns that hold the images themselves, as Hugging Face's parquet files do."""
    for name, kind in types.items():
        inner = kind
        while arrow.types.is_list(inner) or arrow.types.is_large_list(inner):
            inner = inner.value_type
        if (
            arrow.types.is_struct(inner)
            or arrow.types.is_binary(inner)
            or arrow.types.is_large_binary(inner)
        ):
            raise images_inside(f"{path}: column {name} holds the images themselves")


def images_inside(found: str) -> DatasetError:
    """The error of a dataset whose images are not files."""
    return DatasetError(
        found,
        "images as files in a folder, beside captions or a metadata file that names them",
        "Export it as an image folder: in Python, with the library datasets, save each row's "
        "image as NUMBER.png and write its caption to NUMBER.txt beside it (docs/datasets.md has "
        "the lines).",
    )


def _bounded(path: Path, batches: Iterable[Any]) -> Iterator[Any]:
    """What is read of a parquet file, whose own numbers do not say what it unpacks to."""
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > LARGEST_LIST:
            raise refuse_table(path, f"it unpacks to more than the {LARGEST_LIST} bytes read")
        yield batch


def refuse_faulty(path: Path, faults: Sequence[str]) -> None:
    """Refuse a file of which too many lines cannot be used."""
    if len(faults) >= MOST_FAULTS:
        reason = f"{MOST_FAULTS} of its lines cannot be used or more, the first: {faults[0]}"
        raise refuse_table(path, reason)


def _refuse_long(path: Path, count: int) -> None:
    if count > MOST_ROWS:
        raise refuse_table(path, f"it has more than {MOST_ROWS} rows")


def _refuse_wide(path: Path, count: int) -> None:
    if count > MOST_COLUMNS:
        raise refuse_table(path, f"it has more than {MOST_COLUMNS} columns")


def _refuse_large(path: Path, metadata: Any) -> None:
    _refuse_long(path, metadata.num_rows)
    groups = range(metadata.num_row_groups)
    size = sum(metadata.row_group(number).total_byte_size for number in groups)
    if size > LARGEST_LIST:
        raise refuse_table(path, f"it unpacks to {size} bytes, more than the {LARGEST_LIST} read")


def as_list(value: Any) -> Sequence[Any]:
    """The items of a cell that may hold several: a list, a JSON list as text, or one value."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            parsed = parse_json(value)
        except ValueError:
            return (value,)
        return parsed if isinstance(parsed, list) else (value,)
    if isinstance(value, list | tuple):
        return value
    return () if value is None else (value,)


def accepted_names(what: str) -> str:
    """The names that a column may have, for a message."""
    return ", ".join(COLUMNS[what])
