"""Numbers of 8 bits in a wider format, by a table of all 256 of them.

Torch computes each number anew from its bits, which takes a few times as long on a CPU.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ...formats.rounding import EIGHT_BIT

_PART = 1 << 17
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
    if values.dtype not in EIGHT_BIT or not values.is_cpu:
        return values.to(dtype, copy=True)
    table = torch.arange(256, dtype=torch.uint8).view(values.dtype).to(dtype)
    result = torch.empty(values.shape, dtype=dtype)
    integers = _INTEGERS[dtype.itemsize]
    entries, found = table.view(integers).numpy(), result.view(-1).view(integers).numpy()
    codes = values.contiguous().view(torch.uint8).view(-1).numpy()

    def look_up(start: int) -> None:
        part = slice(start, start + _PART)
        # No code lies outside the table. Told that, NumPy writes without a copy in between.
        np.take(entries, codes[part], out=found[part], mode="clip")

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(look_up, range(0, len(codes), _PART)))
    return result
