"""Write a file of weights again with other values for some tensors; the rest byte by byte."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..errors import BaseModelError
from .header import TensorInfo

_BLOCK = 1 << 24


def rewrite(
    source: Path,
    target: Path,
    replaced: Collection[TensorInfo],
    made: Iterable[tuple[TensorInfo, Tensor]],
) -> None:
    """Copy a safetensors file and put other values in the place of some tensors.

    Header, order and all other tensors stay as they are. One tensor is in memory at a time: those
    that are made may come in any order, because each is written at its own place.

    Args:
        source: The file.
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
        for start, end in _kept(missing.values(), _size(source)):
            new.seek(start)
            for block in _blocks(source, start, end):
                new.write(block)
        for info, tensor in made:
            values = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
            if missing.pop(info.key, None) is None or len(values) != info.end - info.start:
                raise ValueError(f"{info.key} is not to be replaced by {len(values)} bytes")
            new.seek(info.start)
            new.write(values.numpy().data)
    if missing:
        raise ValueError(f"nothing was made for {', '.join(missing)}")


def _kept(replaced: Iterable[TensorInfo], size: int) -> Iterator[tuple[int, int]]:
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


__all__ = ["rewrite"]
