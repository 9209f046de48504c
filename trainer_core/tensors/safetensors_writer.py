"""The one writer of safetensors: tensor by tensor, so that no file is in memory as a whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from ..errors import BaseModelError, StorageError
from ..filesystem.storage import atomic_write

_ALIGNMENT = 8
_BLOCK = 1 << 24

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Names of number formats in a file's header, to torch's; those of later versions are not read."""

CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in a file.

    Attributes:
        key: Its name in the file.
        code: Its number format as the header names it, such as ``BF16``.
        start: Its first byte in the file.
        end: The byte behind its last.
    """

    key: str
    code: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def dtype(self) -> torch.dtype:
        """Its number format, which has to be one of `DTYPES`."""
        return DTYPES[self.code]

    @property
    def size(self) -> int:
        """Its number of bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a tensor before it is there."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Outline:
        """The outline of a tensor, which may be on the meta device."""
        return cls(tensor.dtype, tuple(tensor.shape))


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors that are all there as a safetensors file, atomically.

    Args:
        tensors: Tensors of any device, views and tensors that share memory too; each is written
            whole, contiguous and in its own dtype.

    Raises:
        StorageError: When the disk is full or the folder cannot be written.
    """
    # The wide formats first, so that each tensor begins at a multiple of its own size.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    outlines = {name: Outline.of(tensors[name]) for name in names}
    stream_tensors(path, outlines, ((name, tensors[name]) for name in names), metadata)


def stream_tensors(
    path: Path,
    outlines: Mapping[str, Outline],
    tensors: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str] | None = None,
    check: Callable[[Path], None] | None = None,
    *,
    replace: bool = True,
) -> None:
    """Write a safetensors file atomically while its tensors are being made.

    Args:
        outlines: Every tensor of the file, in the order in which they come.
        tensors: The same names in the same order, with the tensors, of any device.
        check: Told the written file while it has a temporary name; an error keeps it from getting
            its own.

    Raises:
        InputError: When something has the name and is not to be replaced.
        StorageError: When the disk is full, the folder cannot be written, or a tensor is not what
            its outline says. Whatever `tensors` or `check` raises passes through. Nothing is
            written then.
    """

    def write(target: Path) -> None:
        with target.open("wb") as file:
            file.write(_header(outlines, metadata or {}))
            expected = iter(outlines.items())
            for name, tensor in tensors:
                if next(expected, None) != (name, Outline.of(tensor)):
                    raise _unexpected(path, f"{name!r} of {tensor.dtype} {tuple(tensor.shape)}")
                _write_tensor(file, tensor)
            missing = next(expected, None)
            if missing is not None:
                raise _unexpected(path, f"no tensor {missing[0]!r}")
        if check is not None:
            check(target)

    atomic_write(path, write, replace=replace)


def _header(outlines: Mapping[str, Outline], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, outline in outlines.items():
        size = outline.dtype.itemsize
        for length in outline.shape:
            size *= length
        code = CODES[outline.dtype]
        entries[name] = {
            "dtype": code,
            "shape": list(outline.shape),
            "data_offsets": [start, start + size],
        }
        start += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _unexpected(path: Path, found: str) -> StorageError:
    return StorageError(
        f"{found} for {path}",
        "the tensors that the file's header announces",
        "This is a fault of the program; please report it. No file was written.",
    )


def _write_tensor(file: IO[bytes], tensor: Tensor) -> None:
    values = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    file.write(values.numpy().data)


def rewrite_tensors(
    source: Path,
    target: Path,
    replaced: Collection[TensorInfo],
    made: Iterable[tuple[TensorInfo, Tensor]],
) -> None:
    """Copy a safetensors file and put other values in the place of some tensors.

    Header, order and all other tensors stay as they are. One tensor is in memory at a time: those
    that are made may come in any order, because each is written at its own place.

    Args:
        target: The new file, for which nothing stands yet.
        replaced: The tensors that get other values.
        made: Those same tensors with their values, in the same number format and shape.

    Raises:
        OSError: When the target cannot be written.
        BaseModelError: When the source cannot be read.
        ValueError: When what is made is not exactly what is replaced.
    """
    missing = {info.key: info for info in replaced}
    with target.open("wb") as new:
        for start, end in _between(missing.values(), _size(source)):
            new.seek(start)
            for block in _blocks(source, start, end):
                new.write(block)
        for info, tensor in made:
            if missing.pop(info.key, None) is None or tensor.nbytes != info.size:
                raise ValueError(f"{info.key} is not to be replaced by {tensor.nbytes} bytes")
            new.seek(info.start)
            _write_tensor(new, tensor)
    if missing:
        raise ValueError(f"nothing was made for {', '.join(missing)}")


def _between(replaced: Iterable[TensorInfo], size: int) -> Iterator[tuple[int, int]]:
    """The places between the replaced tensors: start and end of each."""
    taken = sorted((info.start, info.end) for info in replaced)
    edges = [0, *itertools.chain.from_iterable(taken), size]
    return ((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)


def _size(source: Path) -> int:
    try:
        return source.stat().st_size
    except OSError as error:
        raise _unreadable(source, error) from error


def _blocks(source: Path, start: int, end: int) -> Iterator[bytes]:
    """The bytes of a place in a file, some at a time."""
    try:
        with source.open("rb") as old:
            old.seek(start)
            while start < end:
                block = old.read(min(_BLOCK, end - start))
                if not block:
                    raise OSError(f"it ends at byte {start} of {end}")
                yield block
                start += len(block)
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: Path, error: OSError) -> BaseModelError:
    return BaseModelError(
        f"{source} cannot be read ({error.strerror or error})",
        "the file as it was when it was opened",
        "Check the disk; nothing was written.",
    )
