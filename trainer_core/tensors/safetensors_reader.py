"""Open a safetensors file and read one tensor at a time.

The header is checked here to the last byte, so that whatever a file holds, only `AdapterFileError`
comes out. Tensors are read with plain file access, not through a memory map: what was mapped and
read counts as this process's memory, and Windows neither replaces nor removes a mapped file.

Source: the safetensors format, https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..errors import AdapterFileError
from ..filesystem.text_files import parse_json, require_regular
from .safetensors_writer import NUMBER_FORMATS

DTYPES: Mapping[str, torch.dtype] = {
    code: getattr(torch, name) for code, name in NUMBER_FORMATS.items()
}
"""Names of number formats in a header."""

LARGEST_HEADER = 100_000_000
"""Bytes of a header; the format allows no more."""

MOST_TENSORS = 100_000
"""Tensors of a file. The largest models have some thousand; a million would take gigabytes."""

_MOST_AXES = 16
_PICKLE_SUFFIXES = {".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"}
_LENGTH = 8
# Zip archives, as torch writes them today, and pickles of the protocols 2 to 5.
_PICKLE_STARTS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in a file.

    Attributes:
        dtype: Its number format.
        shape: Its shape.
        start: Its first byte in the file.
        size: Its number of bytes.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    size: int


class TensorFile:
    """A safetensors file whose header was read; tensors are read when they are asked for.

    Attributes:
        path: The file.
        tensors: Key to where the tensor lies.
        metadata: The header's strings.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self.tensors, self.metadata = _header(path, file)

    def read(self, key: str) -> Tensor:
        """Read a tensor into memory of its own, in the file's number format.

        Raises:
            AdapterFileError: When the file has become shorter, cannot be read, or was closed.
        """
        info = self.tensors[key]
        return self._bytes(key, info.start, info.size).view(info.dtype).reshape(info.shape)

    def read_rows(self, key: str, first: int, last: int) -> Tensor:
        """Read the rows from ``first`` to before ``last`` of a tensor; as `read`."""
        info = self.tensors[key]
        row = info.size // info.shape[0]
        values = self._bytes(key, info.start + first * row, (last - first) * row)
        return values.view(info.dtype).reshape(last - first, *info.shape[1:])

    def _bytes(self, key: str, start: int, size: int) -> Tensor:
        values = torch.empty(size, dtype=torch.uint8)
        try:
            self._file.seek(start)
            count = self._file.readinto(values.numpy()) if size else 0  # type: ignore[attr-defined]
        except OSError as error:
            raise unreadable(self.path, error) from error
        except ValueError as error:
            raise AdapterFileError(
                f"{self.path} was closed before {key} was read",
                "reading inside the block that opened the file",
                "This is a fault of the program; please report it.",
            ) from error
        if count != size:
            raise broken(self.path, f"it has become shorter; {key} is not whole")
        return values


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a safetensors file for the time of a block.

    Args:
        path: A file.

    Yields:
        The file, closed after the block.

    Raises:
        AdapterFileError: When it is not there, cannot be read, is a pickle (which is never
            opened as one), or is no whole safetensors file.
    """
    try:
        require_regular(path)
        opened = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:  # a folder, a device, or a name that no system takes
        raise AdapterFileError(
            f"{str(path)!r} cannot be read ({error})", "a readable adapter file", "Check the path."
        ) from error
    with opened as file:
        try:
            _refuse_pickle(path, file)
            tensors = TensorFile(path, file)
        except OSError as error:
            raise unreadable(path, error) from error
        yield tensors


def unreadable(path: Path, error: OSError) -> AdapterFileError:
    """An error for a file that the system does not give."""
    return AdapterFileError(
        f"{path} cannot be read ({error.strerror or error})",
        "a readable adapter file",
        "Check the path and the file's permissions.",
    )


def broken(path: Path, reason: str) -> AdapterFileError:
    """An error for a file that is not whole, or not an adapter as it should be."""
    return AdapterFileError(
        f"{path}: {reason}",
        "a whole safetensors file with every factor of every layer",
        "Export or download it again.",
    )


def _refuse_pickle(path: Path, file: IO[bytes]) -> None:
    start = file.read(_LENGTH + 1)
    # A safetensors file begins with the length of its header, which then opens with a brace.
    looks = start.startswith(_PICKLE_STARTS) and start[_LENGTH:] != b"{"
    named = path.suffix.lower() in _PICKLE_SUFFIXES
    if looks or named:
        raise AdapterFileError(
            f"{path} is a pickle" + ("" if looks else f", as the ending {path.suffix} says"),
            "a safetensors file; a pickle could run code and is never opened",
            "Ask its author for a safetensors file.",
        )
    if not start:
        raise broken(path, "the file is empty")


def _header(path: Path, file: IO[bytes]) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH), "little")
    try:
        if size < _LENGTH or length > min(size - _LENGTH, LARGEST_HEADER):
            raise ValueError(f"{size} bytes, with a header of {length}")
        content = file.read(length)
        refuse_crowd(content)
        entries = _parse_text(content.decode("utf-8"))
        if not isinstance(entries, dict):
            raise ValueError("its header is no object")
        metadata = _strings(entries.pop("__metadata__", {}))
        tensors = {key: _info(key, entry, _LENGTH + length) for key, entry in entries.items()}
        _check_places(tensors, _LENGTH + length, size)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError among them
        reason = str(error).splitlines()[0][:500] if str(error) else type(error).__name__
        raise broken(path, f"it is no whole safetensors file ({reason})") from error
    return tensors, metadata


def refuse_crowd(header: bytes) -> None:
    """Refuse a header with more tensors than any model has, before it is parsed.

    Raises:
        ValueError: When there are more than `MOST_TENSORS`.
    """
    count = header.count(b"data_offsets")
    if count > MOST_TENSORS:
        raise ValueError(f"it lists {count} tensors, and {MOST_TENSORS} are read at most")


def _parse_text(text: str) -> Any:
    """Parse a header; one half of a pair of code units, which JSON can escape, is no text."""
    entries = parse_json(text, unique=True)
    if "\\ud" in text.lower():
        try:
            json.dumps(entries, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError("its header holds a lone surrogate, which is no text") from error
    return entries


def _strings(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("its metadata is no object of strings")
    return value


def _info(key: str, entry: Any, begin: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of {key!r} is not one of a tensor")
    shape, offsets = _counts(key, entry["shape"]), _counts(key, entry["data_offsets"])
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"{key!r} is of the number format {entry['dtype']!r}, which is not read")
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"the place {offsets} of {key!r} does not fit its shape {shape}")
    return TensorInfo(dtype, tuple(shape), begin + offsets[0], offsets[1] - offsets[0])


def _counts(key: str, value: Any) -> list[int]:
    fits = isinstance(value, list) and len(value) <= _MOST_AXES
    if not fits or not all(type(each) is int and 0 <= each < 2**63 for each in value):
        raise ValueError(f"{str(value)[:200]} at {key!r} is no list of sizes")
    return value


def _check_places(tensors: Mapping[str, TensorInfo], begin: int, size: int) -> None:
    """See whether the tensors lie one after another and fill the file."""
    place = begin
    for key, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)):
        if info.start != place:
            raise ValueError(f"{key!r} overlaps another tensor or leaves a gap before it")
        place += info.size
    if place != size:
        raise ValueError(f"its tensors end at byte {place} of {size}")
