"""Numbers of few bits written out by a table: faster than torch's own conversion on a CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

_PART = 1 << 16
"""Codes that are looked up at once: what NumPy makes of them in between stays in the cache."""

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Size in bytes to integers of that size: NumPy has no bfloat16, and only copies."""


def widened(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy a tensor into a format of at least 16 bits; bit for bit what ``values.to(dtype)`` gives.

    Args:
        values: Of any number format and device.
        dtype: A floating-point format of 16, 32 or 64 bits.

    Returns:
        A tensor of its own, of the same shape.
    """
    if values.dtype != torch.float8_e4m3fn or not _has_numpy(values):
        return values.to(dtype, copy=True)
    table = torch.arange(256, dtype=torch.uint8).view(values.dtype).to(dtype)
    codes = values.contiguous().view(torch.uint8).view(-1)
    return looked_up(codes, table[:, None]).view(values.shape)


def looked_up(codes: Tensor, table: Tensor) -> Tensor:
    """Put a table's entries in the place of their numbers.

    Args:
        codes: `[n]`, uint8.
        table: `[256, k]`, on the same device; on a CPU an entry has 2, 4 or 8 bytes.

    Returns:
        A new tensor `[n, k]`.
    """
    if not _has_numpy(codes):
        return table.index_select(0, codes.int())
    result = torch.empty((len(codes), table.shape[1]), dtype=table.dtype)
    whole = _INTEGERS[table.shape[1] * table.itemsize]
    entries, found = table.view(whole).view(-1).numpy(), result.view(whole).view(-1).numpy()
    numbers, threads = codes.numpy(), torch.get_num_threads()

    def look_up(thread: int) -> None:
        for start in range(thread * _PART, len(numbers), threads * _PART):
            part = slice(start, start + _PART)
            # No code lies outside the table. Told that, NumPy writes without a copy in between.
            np.take(entries, numbers[part], out=found[part], mode="clip")

    if len(numbers) <= _PART:
        look_up(0)
        return result
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(look_up, range(threads)))
    return result


def _has_numpy(tensor: Tensor) -> bool:
    """Whether NumPy can read it; a compiled graph is torch's alone."""
    return tensor.is_cpu and not torch.compiler.is_compiling()
