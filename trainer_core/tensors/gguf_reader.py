"""Reads the header of a GGUF file: where each tensor lies, and the texts of its metadata.

Whatever a file holds, only a `ValueError` or an `OSError` comes out. Nothing is believed before it
is compared with the size of the file, and what is not needed is skipped.

Source: the GGUF format, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import IO

from .safetensors_reader import LARGEST_HEADER, MOST_TENSORS, text_instead
from .safetensors_writer import TensorInfo

GGUF_TYPES = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""The number formats that are read: numbers of a block, and its bytes."""

_CODES = dict(enumerate(["F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1"]))
_CODES |= dict(enumerate(["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"], 10))
_CODES |= dict(enumerate(["IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S"], 16))
_CODES |= dict(
    enumerate(["IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"], 22)
)
_CODES |= {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_MOST_ENTRIES = 1 << 16
_MOST_ITEMS = 1 << 20
_LONGEST_NAME = 1 << 12
_LONGEST_TEXT = 1 << 16
_MOST_AXES = 5


def read_gguf_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Every tensor's place in a GGUF file, by its name, and the texts among its metadata.

    A tensor's shape is torch's: rows first. Its code is GGUF's name of its number format, one of
    `GGUF_TYPES`.

    Raises:
        OSError: When the file cannot be read.
        ValueError: When it is not a complete GGUF file, or a tensor's number format is not read.
    """
    with path.open("rb") as file:
        return _Header(file).read()


class _Header:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._place = 0

    def read(self) -> tuple[dict[str, TensorInfo], dict[str, str]]:
        if self._bytes(4) != _MAGIC:
            self._file.seek(0)
            what, _ = text_instead(self._file.read(_LONGEST_NAME))
            raise ValueError(f"it is {what}" if what else "it does not begin with GGUF")
        version = self._number(4)
        if version not in _VERSIONS:
            raise ValueError(f"it is of version {version}; 2 and 3 in little-endian order are read")
        count, entries = self._number(8), self._number(8)
        if count > MOST_TENSORS or entries > _MOST_ENTRIES:
            raise ValueError(f"it lists {count} tensors and {entries} entries")
        texts: dict[str, str] = {}
        alignment = 32
        for _ in range(entries):
            key, kind = self._text(_LONGEST_NAME), self._number(4)
            if kind == _STRING:
                texts[key] = self._text(_LONGEST_TEXT, cut=True)
            elif key == "general.alignment" and kind == _UINT32:
                alignment = self._number(4)
            else:
                self._skip(kind)
        if not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise ValueError(f"its alignment is {alignment}")
        listed = [self._tensor() for _ in range(count)]
        begin = -(-self._place // alignment) * alignment
        return self._placed(listed, begin, alignment), texts

    def _placed(
        self, listed: list[tuple[str, str, tuple[int, ...], int]], begin: int, alignment: int
    ) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, code, shape, offset in listed:
            block, size = GGUF_TYPES[code]
            if shape[-1] % block:
                raise ValueError(
                    f"rows of {shape[-1]} numbers in {name!r} are not whole blocks of {code}"
                )
            start = begin + offset
            end = start + math.prod(shape) // block * size
            if offset % alignment or end > max(self._size, begin):
                raise ValueError(f"{name!r} is said to lie from byte {start} to {end}")
            if name in tensors:
                raise ValueError(f"{name!r} is there twice")
            tensors[name] = TensorInfo(name, code, shape, start=start, end=end)
        place = begin
        for info in sorted(tensors.values(), key=lambda info: (info.start, info.end)):
            if info.start < place:
                raise ValueError(f"{info.key!r} overlaps another tensor")
            place = info.end
        return tensors

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int]:
        name, axes = self._text(_LONGEST_NAME), self._number(4)
        if not 1 <= axes <= _MOST_AXES:
            raise ValueError(f"{name!r} has {axes} axes")
        shape = tuple(self._number(8) for _ in range(axes))[::-1]
        kind, offset = self._number(4), self._number(8)
        code = _CODES.get(kind) or f"type {kind}"
        if code not in GGUF_TYPES:
            raise ValueError(f"{name!r} is stored as {code}, which is not read")
        return name, code, shape, offset

    def _skip(self, kind: int) -> None:
        if kind == _ARRAY:
            item, count = self._number(4), self._number(8)
            if item != _STRING:
                self._forward(count * self._item_size(item))
                return
            if count > _MOST_ITEMS:
                raise ValueError(f"it lists {count} texts")
            for _ in range(count):
                self._forward(self._number(8))
            return
        self._forward(self._item_size(kind))

    def _item_size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ValueError(f"its metadata holds a value of type {kind}")
        return _SIZES[kind]

    def _text(self, longest: int, *, cut: bool = False) -> str:
        """A text; one that is too long is an error, or empty where it may be cut."""
        length = self._number(8)
        if length > longest:
            if not cut:
                raise ValueError(f"a name of {length} bytes")
            self._forward(length)
            return ""
        return self._bytes(length).decode("utf-8")

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size), "little")

    def _bytes(self, count: int) -> bytes:
        self._claim(count)
        content = self._file.read(count)
        if len(content) != count:
            raise ValueError(f"it ends in its header, at byte {self._place}")
        return content

    def _forward(self, count: int) -> None:
        self._claim(count)
        self._file.seek(self._place)

    def _claim(self, count: int) -> None:
        if self._place + count > min(self._size, LARGEST_HEADER):
            raise ValueError(f"its header goes on for {count} bytes at byte {self._place}")
        self._place += count
