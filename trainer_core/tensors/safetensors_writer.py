"""Write a safetensors file tensor by tensor, so that it is never in memory as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..errors import StorageError
from ..filesystem.storage import atomic_write

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ALIGNMENT = 8
NUMBER_FORMATS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Names of number formats in a file's header, to torch's; those of later versions are not read."""

_CODES = {name: code for code, name in NUMBER_FORMATS.items()}


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a tensor before it is there.

    Attributes:
        dtype: Its number format.
        shape: Its shape.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Outline:
        """The outline of a tensor, which may be on the meta device."""
        return cls(tensor.dtype, tuple(tensor.shape))


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
        path: The final name.
        outlines: Every tensor of the file, in the order in which they come.
        tensors: The same names in the same order, with the tensors, of any device.
        metadata: Strings for the file's header.
        check: Told the written file while it has a temporary name; an error keeps it from getting
            its own.
        replace: As in `atomic_write`.

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
                _check(path, name, tensor, next(expected, None))
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
        code = _CODES[str(outline.dtype).removeprefix("torch.")]
        entries[name] = {
            "dtype": code,
            "shape": list(outline.shape),
            "data_offsets": [start, start + size],
        }
        start += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _check(path: Path, name: str, tensor: Tensor, wanted: tuple[str, Outline] | None) -> None:
    if wanted != (name, Outline.of(tensor)):
        raise _unexpected(path, f"{name!r} of {tensor.dtype} {tuple(tensor.shape)}")


def _unexpected(path: Path, found: str) -> StorageError:
    return StorageError(
        f"{found} for {path}",
        "the tensors that the file's header announces",
        "This is a fault of the program; please report it. No file was written.",
    )


def _write_tensor(file: IO[bytes], tensor: Tensor) -> None:
    import torch

    values = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    file.write(values.numpy().data)
