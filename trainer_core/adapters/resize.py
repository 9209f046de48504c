"""Give a layer's factors other sizes: the closest delta that those sizes can hold.

Everything is computed in float64 on the CPU. Closeness is the Frobenius norm of the difference of
the deltas, and an error is that norm over the norm of the given delta.

Sources:
    Eckart, Young 1936 (the closest matrix of a rank); Van Loan, Pitsianis 1993, "Approximation with
    Kronecker Products" (the closest Kronecker product is the closest matrix of rank 1 of the
    rearranged matrix).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import AdapterError
from ..types import LayerState
from .dora import DORA_SCALE
from .kernels.convolution import CORES, as_matrices
from .kinds.registry import KINDS, layer_scale

Matrices = dict[str, Tensor]
Spectrum = tuple[Tensor, Tensor, Tensor]

_NEGLIGIBLE = 1e-7
"""Singular values below this share of the largest are float32's rounding, not the adapter."""

_EXACT = 1e-6
"""Relative error up to which factors in float32 are the same adapter."""

_SCALED_FACTORS = ("lora_up", "hada_w2_a", "lokr_w2_b", "lokr_w2")
"""The factor that takes up a difference of scales: the one that starts at zero."""

_BLOCK, _SWEEPS, _SETTLED = 8, 200, 1e-13


@dataclass(frozen=True, slots=True)
class Resized:
    """Factors of the wanted sizes.

    Attributes:
        tensors: Factor name to tensor, in the dtype of the wanted layer's.
        error: Norm of what the delta lost over the norm of the delta; 0 where nothing was lost.
    """

    tensors: Mapping[str, Tensor]
    error: float


def same_sizes(layer: LayerState, fresh: Mapping[str, Tensor]) -> bool:
    """Whether a layer's factors, DoRA's magnitude aside, have the wanted names and shapes."""
    given, wanted = (
        {name: tuple(tensor.shape) for name, tensor in _without_magnitude(factors).items()}
        for factors in (layer.tensors, fresh)
    )
    return given == wanted


def resize(kind: str, layer: LayerState, fresh: Mapping[str, Tensor], scale: float) -> Resized:
    """Fit a layer's factors to other sizes.

    Factors that have the wanted sizes already are taken as they are. A larger rank is exact: the
    new part has the initialization of a new layer, with a delta of zero, so that it can learn. A
    smaller rank keeps the largest singular values.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        layer: The given factors.
        fresh: A new layer's initialization, whose delta is zero; DoRA's magnitude is passed
            over.
        scale: What the wanted layer's delta is multiplied by.

    Returns:
        The factors and what was lost.

    Raises:
        AdapterError: For a loha that does not fit into a smaller rank, or a wanted Tucker core of
            other sizes.
    """
    wanted, given = _without_magnitude(fresh), _without_magnitude(layer.tensors)
    ratio = layer_scale(kind, layer) / scale
    if same_sizes(layer, fresh):
        fitted, error = _rescaled(given, ratio) if ratio != 1.0 else given, 0.0
    elif not all(bool(tensor.any()) for tensor in given.values()):
        fitted, error = wanted, 0.0
    else:
        _refuse_cores(wanted)
        matrices, start = (
            as_matrices({name: tensor.double() for name, tensor in factors.items()})
            for factors in (given, wanted)
        )
        fitted, error = _RULES[kind](_rescaled(matrices, ratio), start)
    tensors = {n: fitted[n].to(t.dtype).reshape(t.shape).contiguous() for n, t in wanted.items()}
    return Resized(tensors, error)


def spectrum_of_product(up: Tensor, down: Tensor) -> Spectrum:
    """Singular values and vectors of ``up @ down`` without building it.

    Args:
        up: `[out, r]`.
        down: `[r, in]`.

    Returns:
        ``u [out, k]``, ``s [k]`` descending, ``vh [k, in]`` with k the smallest of the three sizes.
    """
    left, upper = torch.linalg.qr(up)
    right, lower = torch.linalg.qr(down.t())
    u, s, vh = torch.linalg.svd(upper @ lower.t(), full_matrices=False)
    return left @ u, s, vh @ right.t()


def nearest_kronecker(
    matrix: Tensor, first: tuple[int, int], second: tuple[int, int]
) -> tuple[Tensor, Tensor, float]:
    """Find the Kronecker product of two sizes that is closest to a matrix.

    Args:
        matrix: `[a * b, c * d]`, float64.
        first: ``(a, c)``.
        second: ``(b, d)``.

    Returns:
        The two factors, of equal norm, and the relative error.
    """
    rearranged = _rearranged(matrix, first, second)
    left, value, right = leading_pair(rearranged)
    root = math.sqrt(value)
    factors = (left * root).view(first), (right * root).view(second)
    return *factors, _relative_error(torch.outer(left, right) * value, rearranged)


def leading_pair(matrix: Tensor) -> tuple[Tensor, float, Tensor]:
    """The largest singular value of a matrix and its two vectors, by subspace iteration.

    The whole decomposition of a layer that has thousands of rows and columns would take minutes.

    Args:
        matrix: `[rows, columns]`, float64.

    Returns:
        The left vector, the value, and the right vector.
    """
    columns = min(_BLOCK, *matrix.shape)
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(matrix.shape[1], columns, generator=generator, dtype=matrix.dtype)
    left, right, previous = basis, basis, -1.0
    for _ in range(_SWEEPS):
        left = torch.linalg.qr(matrix @ right)[0]
        right = matrix.t() @ left
        value = float(torch.linalg.matrix_norm(right, ord=2))
        if abs(value - previous) <= _SETTLED * value:
            break
        previous = value
    u, s, vh = torch.linalg.svd(right, full_matrices=False)
    return left @ vh[0], float(s[0]), u[:, 0]


def _rescaled(factors: Mapping[str, Tensor], ratio: float) -> Matrices:
    name = next(name for name in _SCALED_FACTORS if name in factors)
    return {**factors, name: factors[name] * ratio}


def _without_magnitude(factors: Mapping[str, Tensor]) -> Matrices:
    return {name: tensor for name, tensor in factors.items() if name != DORA_SCALE}


def _refuse_cores(wanted: Mapping[str, Tensor]) -> None:
    core = next((name for name in wanted if name in CORES), None)
    if core is not None:
        raise AdapterError(
            f"adapter.tucker, whose {core} is {tuple(wanted[core].shape)}, and other sizes given",
            "the rank and factor of the given layer where a core stands for the window",
            "Take the same rank and factor, or set adapter.tucker to false.",
        )


def _pair(spectrum: Spectrum, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, float]:
    """Put the largest singular values into a pair, and its initialization where there are no more.

    Returns:
        Upper factor, lower factor, relative error.
    """
    u, s, vh = spectrum
    kept = min(up.shape[1], int((s > _NEGLIGIBLE * s[0]).sum()))
    root = s[:kept].sqrt()
    lost = torch.linalg.vector_norm(s[kept:]) / torch.linalg.vector_norm(s)
    return (*_padded(u[:, :kept] * root, root[:, None] * vh[:kept], up, down), float(lost))


def _padded(up: Tensor, down: Tensor, new_up: Tensor, new_down: Tensor) -> tuple[Tensor, Tensor]:
    rank = up.shape[1]
    return torch.cat([up, new_up[:, rank:]], 1), torch.cat([down, new_down[rank:]], 0)


def _fit_pair(
    up: Tensor, down: Tensor, new_up: Tensor, new_down: Tensor
) -> tuple[Tensor, Tensor, float]:
    if up.shape[1] <= new_up.shape[1]:
        return (*_padded(up, down, new_up, new_down), 0.0)
    return _pair(spectrum_of_product(up, down), new_up, new_down)


def _fit_lora(given: Matrices, fresh: Matrices) -> tuple[Matrices, float]:
    names = ("lora_up", "lora_down")
    up, down, error = _fit_pair(*(given[name] for name in names), *(fresh[name] for name in names))
    return {"lora_up": up, "lora_down": down}, error


def _fit_loha(given: Matrices, fresh: Matrices) -> tuple[Matrices, float]:
    fitted: Matrices = {}
    for first, second in (("hada_w1_a", "hada_w1_b"), ("hada_w2_a", "hada_w2_b")):
        # A new part of both products has to be zero, and may start to move in one factor.
        new_up = torch.zeros_like(fresh[first])
        pair = _fit_pair(given[first], given[second], new_up, fresh[second])
        fitted |= {first: pair[0], second: pair[1]}
    rank = max(given[name].shape[1] for name in ("hada_w1_a", "hada_w2_a"))
    wanted = fresh["hada_w1_a"].shape[1]
    if rank <= wanted:
        return fitted, 0.0
    delta = KINDS["loha"].delta
    error = _relative_error(delta(fitted, 1.0), delta(given, 1.0))
    if error > _EXACT:
        raise AdapterError(
            f"a loha of rank {rank} that loses {error:.1%} of its delta at rank {wanted}",
            f"a rank of at least {rank}: no method finds the closest loha of a smaller one",
            f"Set adapter.rank to {rank} or more.",
        )
    return fitted, error


def _fit_lokr(given: Matrices, fresh: Matrices) -> tuple[Matrices, float]:
    sizes = [_outer_size(fresh, name) for name in ("lokr_w1", "lokr_w2")]
    if [_outer_size(given, name) for name in ("lokr_w1", "lokr_w2")] == sizes:
        first, first_error = _fit_part("lokr_w1", given, fresh)
        second, second_error = _fit_part("lokr_w2", given, fresh)
        # Both are cut by projections: what is left is the product of what each has left.
        return {**first, **second}, math.hypot(
            first_error, second_error * math.sqrt(1.0 - first_error**2)
        )
    old = _whole(given, "lokr_w1"), _whole(given, "lokr_w2")
    one, other = _split_again(*old, *sizes)
    first, _ = _fit_part("lokr_w1", {"lokr_w1": one}, fresh)
    second, _ = _fit_part("lokr_w2", {"lokr_w2": other}, fresh)
    fitted = {**first, **second}
    return fitted, _relative_error(KINDS["lokr"].delta(fitted, 1.0), torch.kron(*old))


def _split_again(
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


def _fit_part(name: str, given: Matrices, fresh: Matrices) -> tuple[Matrices, float]:
    """Bring one of the two Kronecker factors from whole or low-rank to whole or low-rank."""
    if name in fresh:
        return {name: _whole(given, name)}, 0.0
    up, down = f"{name}_a", f"{name}_b"
    new_up, new_down = fresh[up], fresh[down]
    if name == "lokr_w1":
        # Both parts of the first factor start at random; a new part must add nothing.
        new_up = torch.zeros_like(new_up)
    if name in given:
        spectrum = torch.linalg.svd(given[name], full_matrices=False)
        pair = _pair(spectrum, new_up, new_down)
    else:
        pair = _fit_pair(given[up], given[down], new_up, new_down)
    return {up: pair[0], down: pair[1]}, pair[2]


def _whole(factors: Matrices, name: str) -> Tensor:
    return factors[name] if name in factors else factors[f"{name}_a"] @ factors[f"{name}_b"]


def _outer_size(factors: Matrices, name: str) -> tuple[int, int]:
    up, down = (name, name) if name in factors else (f"{name}_a", f"{name}_b")
    return factors[up].shape[0], factors[down].shape[1]


def _rearranged(matrix: Tensor, first: tuple[int, int], second: tuple[int, int]) -> Tensor:
    """Make a matrix whose rows are the blocks, so that a Kronecker product has rank 1."""
    blocks = matrix.reshape(first[0], second[0], first[1], second[1])
    return blocks.permute(0, 2, 1, 3).reshape(first[0] * first[1], second[0] * second[1])


def _relative_error(value: Tensor, reference: Tensor) -> float:
    lost = torch.linalg.vector_norm(value - reference)
    return float(lost / torch.linalg.vector_norm(reference))


_RULES = {"lora": _fit_lora, "loha": _fit_loha, "lokr": _fit_lokr}
