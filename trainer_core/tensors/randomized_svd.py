"""The closest matrix of a rank to a large one, without decomposing all of it.

Source: Halko, Martinsson, Tropp 2011, arXiv:0909.4061 (a random start, then a few products with the
matrix and its transpose); Eckart, Young 1936 (what the closest one is).
"""

from __future__ import annotations

import torch
from torch import Tensor

_WHOLE = 1 << 16
"""Numbers up to which a matrix is decomposed as a whole, which is then the faster way."""

_MORE = 16
"""Directions beyond the wanted ones; they make the wanted ones settle sooner."""

_SWEEPS, _SETTLED = 12, 1e-4
"""Most products with the matrix and its transpose; relative gain at which they end."""


def closest_of_rank(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the largest singular values of a matrix and their vectors.

    A small matrix is decomposed exactly. For others the product of the results is as
    near to the matrix as the closest one of that rank, but for about one percent of that distance
    (a test holds it to that, also for a spectrum that hardly falls); where the matrix is of the
    rank, it is found to the rounding of its own format.

    Args:
        matrix: `[rows, columns]`, float32 or float64.
        rank: At least 1; more than the smaller side is taken as that.

    Returns:
        ``u [rows, k]``, ``s [k]`` descending and ``vh [k, columns]`` in float64, where k is the
        rank, or less where the matrix has less: values that are its format's rounding of the
        largest are left out, but for one.
    """
    rank = min(rank, *matrix.shape)
    if matrix.numel() <= _WHOLE or rank + _MORE >= min(matrix.shape) // 2:
        u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    else:
        basis = _main_directions(matrix, rank + _MORE)
        left, s, vh = torch.linalg.svd((basis.t() @ matrix).double(), full_matrices=False)
        u = basis.double() @ left
    least = torch.finfo(matrix.dtype).eps * max(matrix.shape) ** 0.5
    kept = min(rank, max(1, int((s > least * s[0]).sum())))
    return u[:, :kept], s[:kept], vh[:kept]


def _main_directions(matrix: Tensor, count: int) -> Tensor:
    """An orthonormal basis of what holds most of a matrix's columns: `[rows, count]`."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(matrix.shape[1], count, generator=generator, dtype=matrix.dtype)
    basis, before = torch.linalg.qr(matrix @ start)[0], 0.0
    for _ in range(_SWEEPS):
        other = torch.linalg.qr(matrix.t() @ basis)[0]
        product = matrix @ other
        held = float(torch.linalg.vector_norm(product))
        basis = torch.linalg.qr(product)[0]
        if held - before <= _SETTLED * held:
            break
        before = held
    return basis


__all__ = ["closest_of_rank"]
