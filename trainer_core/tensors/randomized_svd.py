"""The largest singular values of a large matrix, without decomposing all of it.

The one subspace iteration, for whoever wants some directions of a matrix: the closest matrix of a
rank, initialization from a weight, the closest Kronecker product.

Source: Halko, Martinsson, Tropp 2011, arXiv:0909.4061, algorithm 4.4 (a random start, then a few
products with the matrix and its transpose); Eckart, Young 1936 (what the closest matrix is).
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


def largest_singular(
    matrix: Tensor, count: int, generator: torch.Generator, sweeps: int = 8, settled: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest singular values of a matrix and their vectors, in the matrix's number format.

    A small matrix is decomposed as a whole, a large one by subspace iteration.

    Args:
        matrix: `[m, n]`.
        count: How many, at most the smaller side.
        generator: On the CPU; where the iteration starts.
        sweeps: How often at most the iteration multiplies by the matrix and its transpose.
        settled: Relative gain at which it ends before that; 0 for never.

    Returns:
        ``u [m, count]``, ``s [count]`` descending, ``vh [count, n]``.
    """
    width = 2 * count + _MORE
    if 4 * width >= min(matrix.shape):
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return left[:, :count], values[:count], right[:count]
    start = torch.randn(matrix.shape[1], width, generator=generator).to(matrix)
    basis = _main_directions(matrix, start, sweeps, settled)
    left, values, right = torch.linalg.svd(basis.t() @ matrix, full_matrices=False)
    return basis @ left[:, :count], values[:count], right[:count]


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
        generator = torch.Generator().manual_seed(0)
        shape = matrix.shape[1], rank + _MORE
        start = torch.randn(shape, generator=generator, dtype=matrix.dtype)
        basis = _main_directions(matrix, start, _SWEEPS, _SETTLED)
        left, s, vh = torch.linalg.svd((basis.t() @ matrix).double(), full_matrices=False)
        u = basis.double() @ left
    least = torch.finfo(matrix.dtype).eps * max(matrix.shape) ** 0.5
    kept = min(rank, max(1, int((s > least * s[0]).sum())))
    return u[:, :kept], s[:kept], vh[:kept]


def _main_directions(matrix: Tensor, start: Tensor, sweeps: int, settled: float) -> Tensor:
    """An orthonormal basis of what holds most of a matrix's columns: `[rows, columns of start]`."""
    basis, before = torch.linalg.qr(matrix @ start)[0], 0.0
    for _ in range(sweeps):
        product = matrix @ torch.linalg.qr(matrix.t() @ basis)[0]
        basis = torch.linalg.qr(product)[0]
        if settled:
            held = float(torch.linalg.vector_norm(product))
            if held - before <= settled * held:
                break
            before = held
    return basis
