"""Rotation of a row, block by block, which spreads an outlier over its block.

A block of 2^k numbers is multiplied with the Hadamard matrix H of that width, whose entries are 1
and -1, divided by 2^(k // 2): that is exact in every number format. What is rotated twice comes
back as it was, or doubled where k is odd (`gain`).

A product with the small matrix is one kernel, the fast transform is k of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDEST = 256

_MATRICES: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


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
    return (rows.reshape(-1, width) @ _matrix(width, rows)).view(rows.shape)


def _matrix(width: int, like: Tensor) -> Tensor:
    """H, divided; kept for each device, but not of a class that only stands for a tensor."""
    key = (width, like.dtype, like.device)
    if type(like) is Tensor and key in _MATRICES:
        return _MATRICES[key]
    with torch.inference_mode(False), torch.no_grad():
        matrix = torch.ones((1, 1), dtype=like.dtype, device=like.device)
        while len(matrix) < width:
            matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
        matrix /= 2 ** ((width.bit_length() - 1) // 2)
    if type(like) is Tensor:
        _MATRICES[key] = matrix
    return matrix
