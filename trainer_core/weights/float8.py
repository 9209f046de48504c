"""Numbers of 8 bits in a wider format, by a table of all 256 of them.

Torch computes each float8_e4m3fn anew from its bits, which takes four times as long on a CPU. Its
float8_e5m2 is the upper half of a float16, which it widens as fast as any table.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

_PART = 1 << 16
"""Numbers that are looked up at once: what NumPy makes of them in between stays in the cache."""

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
    if values.dtype != torch.float8_e4m3fn or not values.is_cpu:
        return values.to(dtype, copy=True)
    table = torch.arange(256, dtype=torch.uint8).view(values.dtype).to(dtype)
    result = torch.empty(values.shape, dtype=dtype)
    integers = _INTEGERS[dtype.itemsize]
    entries, found = table.view(integers).numpy(), result.view(-1).view(integers).numpy()
    codes = values.contiguous().view(torch.uint8).view(-1).numpy()

    threads = torch.get_num_threads()

    def look_up(thread: int) -> None:
        for start in range(thread * _PART, len(codes), threads * _PART):
            part = slice(start, start + _PART)
            # No code lies outside the table. Told that, NumPy writes without a copy in between.
            np.take(entries, codes[part], out=found[part], mode="clip")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(look_up, range(threads)))
    return result
