"""Algebra of products of two factors, and of the Kronecker product nearest to a matrix.

Everything but a norm is computed in the dtype that is given, float64 where closeness counts.

Sources:
    Eckart, Young 1936 (the closest matrix of a rank); Van Loan, Pitsianis 1993, "Approximation with
    Kronecker Products" (the closest Kronecker product is the closest matrix of rank 1 of the
    rearranged matrix).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ...tensors.randomized_svd import largest_singular

Spectrum = tuple[Tensor, Tensor, Tensor]
"""``u [out, k]``, ``s [k]`` descending, ``vh [k, in]``."""

_NEGLIGIBLE = 1e-7
"""Singular values below this share of the largest are float32's rounding, not the adapter."""

_SWEEPS, _SETTLED = 200, 1e-13

_PLAIN = 1e-2
"""Share of its largest possible value above which a sum is free of cancellation."""


def spectrum_of_product(up: Tensor, down: Tensor) -> Spectrum:
    """Singular values and vectors of ``up [out, r] @ down [r, in]`` without building it.

    ``u [out, k]``, ``s [k]`` descending, ``vh [k, in]`` with k the smallest of the three sizes.
    """
    left, upper = torch.linalg.qr(up)
    right, lower = torch.linalg.qr(down.t())
    u, s, vh = torch.linalg.svd(upper @ lower.t(), full_matrices=False)
    return left @ u, s, vh @ right.t()


def product_norm(up: Tensor, down: Tensor) -> float:
    """Norm of ``up @ down``: its square is ``<up^T up, down down^T>``, which are rank x rank."""
    squared, most = _squared_norm(up, down)
    if not squared > _PLAIN * most:
        squared, _ = _squared_norm(up.double(), down.double())
    return math.sqrt(max(squared, 0.0))


def norm_of_product(up: Tensor, down: Tensor) -> Tensor:
    """`product_norm` to float32's digits, as a scalar on the device, which nothing waits for."""
    first, second = up.mT @ up, down @ down.mT
    return (first * second).sum().clamp(min=0.0).sqrt().to(torch.float32)


def fit_product(
    up: Tensor, down: Tensor, new_up: Tensor, new_down: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Bring a product to another rank: the closest of a smaller one, the same at a larger one.

    Factors are `[out, r]` and `[r, in]`; new ones are what they have where there is nothing to
    keep, and have the rank. Gives upper factor, lower factor, relative error.
    """
    if up.shape[1] <= new_up.shape[1]:
        return (*_padded(up, down, new_up, new_down), 0.0)
    return pair_of(spectrum_of_product(up, down), new_up, new_down)


def pair_of(spectrum: Spectrum, new_up: Tensor, new_down: Tensor) -> tuple[Tensor, Tensor, float]:
    """Put the largest singular values into a pair, as `fit_product`."""
    u, s, vh = spectrum
    kept = min(new_up.shape[1], int((s > _NEGLIGIBLE * s[0]).sum()))
    root = s[:kept].sqrt()
    lost = torch.linalg.vector_norm(s[kept:]) / torch.linalg.vector_norm(s)
    pair = _padded(u[:, :kept] * root, root[:, None] * vh[:kept], new_up, new_down)
    return (*pair, float(lost))


def relative_error(value: Tensor, reference: Tensor) -> float:
    """``||value - reference|| / ||reference||``."""
    lost = torch.linalg.vector_norm(value - reference)
    return float(lost / torch.linalg.vector_norm(reference))


def nearest_kronecker(
    matrix: Tensor, first: tuple[int, int], second: tuple[int, int]
) -> tuple[Tensor, Tensor, float]:
    """Find the Kronecker product of sizes (a, c) and (b, d) that is closest to `[a * b, c * d]`.

    The matrix is float64. Gives the two factors, of equal norm, and the relative error.
    """
    rearranged = blocks_as_rows(matrix, first, second)
    left, value, right = leading_pair(rearranged)
    root = math.sqrt(value)
    factors = (left * root).view(first), (right * root).view(second)
    return *factors, relative_error(torch.outer(left, right) * value, rearranged)


def split_kronecker(
    first: Tensor, second: Tensor, new_first: tuple[int, int], new_second: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The closest Kronecker product of other sizes to a Kronecker product.

    Where one split refines the other, only one of the factors has to be split, because the
    rearranged matrix is then itself a Kronecker product: of that factor's and of a vector.
    """
    rows, columns = first.shape
    if new_first[0] % rows == 0 and new_first[1] % columns == 0:
        inner = new_first[0] // rows, new_first[1] // columns
        one, other, _ = nearest_kronecker(second, inner, new_second)
        return torch.kron(first, one), other
    if rows % new_first[0] == 0 and columns % new_first[1] == 0:
        inner = rows // new_first[0], columns // new_first[1]
        one, other, _ = nearest_kronecker(first, new_first, inner)
        return one, torch.kron(other, second)
    one, other, _ = nearest_kronecker(torch.kron(first, second), new_first, new_second)
    return one, other


def kronecker_spectrum(first: Spectrum, second: Spectrum, kept: int) -> Spectrum:
    """The largest singular values of a Kronecker product with their vectors, and all the others.

    They are the products of its factors' singular values, and the vectors the Kronecker products of
    theirs (Van Loan 2000, "The ubiquitous Kronecker product", section 2). As of
    `spectrum_of_product`, with vectors for the first `kept` values alone.
    """
    values, order = torch.outer(first[1], second[1]).flatten().sort(descending=True, stable=True)
    of_first, of_second = order[:kept] // len(second[1]), order[:kept] % len(second[1])
    u = torch.einsum("ak,bk->abk", first[0][:, of_first], second[0][:, of_second]).flatten(0, 1)
    vh = torch.einsum("kc,kd->kcd", first[2][of_first], second[2][of_second]).flatten(1)
    return u, values, vh


def leading_pair(matrix: Tensor) -> tuple[Tensor, float, Tensor]:
    """The left vector, value and right vector of the largest singular value, in float64."""
    generator = torch.Generator().manual_seed(0)
    u, s, vh = largest_singular(matrix, 1, generator, sweeps=_SWEEPS, settled=_SETTLED)
    return u[:, 0], float(s[0]), vh[0]


def blocks_as_rows(matrix: Tensor, first: tuple[int, int], second: tuple[int, int]) -> Tensor:
    """Make a matrix whose rows are the blocks, so that a Kronecker product has rank 1."""
    blocks = matrix.reshape(first[0], second[0], first[1], second[1])
    return blocks.permute(0, 2, 1, 3).reshape(first[0] * first[1], second[0] * second[1])


def _padded(up: Tensor, down: Tensor, new_up: Tensor, new_down: Tensor) -> tuple[Tensor, Tensor]:
    rank = up.shape[1]
    return torch.cat([up, new_up[:, rank:]], 1), torch.cat([down, new_down[rank:]], 0)


def _squared_norm(up: Tensor, down: Tensor) -> tuple[float, float]:
    """The square of the norm, and the most that it could be for factors of these sizes."""
    first, second = _gram(up.T).double(), _gram(down).double()
    sizes = (float(torch.linalg.vector_norm(each)) for each in (first, second))
    return float((first * second).sum()), math.prod(sizes)


def _gram(rows: Tensor) -> Tensor:
    # NumPy knows that a matrix times its own transpose is symmetric, and computes half of it.
    values = rows.numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # seen by who asked, who goes to float64
        return torch.from_numpy(values @ values.T)
