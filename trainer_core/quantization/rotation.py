"""Rotation of a row, block by block, which spreads an outlier over its block.

A block of 2^k numbers is multiplied with the Hadamard matrix H of that width, whose entries are 1
and -1, divided by 2^(k // 2): that is exact in every number format. What is rotated twice comes
back as it was, or doubled where k is odd (`gain`).

A product with the small matrix is one kernel, the fast transform is k of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..tensors.device_tables import device_table

WIDEST = 256


def width_of(size: int) -> int:
    """Numbers in a block: the largest power of two that divides a row's, up to `WIDEST`."""
    return min(WIDEST, size & -size)


def gain(size: int) -> int:
    """What rotating a row twice multiplies it by: 1 or 2."""
    return 1 + (width_of(size).bit_length() - 1) % 2


def rotate(rows: Tensor) -> Tensor:
    """Rotate each row.

    Args:
        rows: `[..., size]`, of a dtype that torch computes with.

    Returns:
        The same shape and dtype; rows themselves where a block is a single number.
    """
    width = width_of(rows.shape[-1])
    if width == 1:
        return rows
    return (rows.reshape(-1, width) @ _matrix(rows, width, rows.dtype)).view(rows.shape)


@device_table
def _matrix(width: int, dtype: torch.dtype) -> Tensor:
    """H, divided."""
    place = torch.arange(width, device="cpu")
    bits = place.view(-1, 1) & place
    # An entry is -1 where the two places have an odd number of bits in common.
    for shift in (4, 2, 1):
        bits = bits ^ (bits >> shift)
    signs = 1 - 2 * (bits & 1)
    return signs.to(dtype) / 2 ** ((width.bit_length() - 1) // 2)
