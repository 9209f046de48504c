"""What a layer's factors add to a weight, with DoRA too, how large it is, and it as one product.

Without DoRA the effective delta is the delta D, whatever the weight. With DoRA it is

    m * (W + D) / |W + D| - W

with the magnitude m and the norm over the axis that the magnitude has. A strength multiplies the
effective delta as a whole, so that 0 gives W and 1 the trained layer; ComfyUI blends DoRA so too
(``comfy/weight_adapter/base.py``). On the output axis ComfyUI up to 0.33 divides by ``|W|``
instead; the formula here is the paper's, PEFT's and LyCORIS's.

Rows of a low-rank product are rows of its first factor. Those of a Kronecker product ``kron(A, B)``
are of no other Kronecker product, but where they begin and end between the blocks of B; as the
product ``kron(A1, B1) kron(A2, B2)`` with ``A = A1 A2`` and ``B = B1 B2`` they can be cut anywhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE, axis_of, magnitude_ratio, squared_norms
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.registry import FILE_RULES, KINDS, layer_delta, layer_scale, matrix_sizes
from ...errors import AdapterError
from ...types import LayerState
from ..names.layer_match import RowSlice
from .split_fused import row_ranges

_LEAST, _MOST = 1e-12, 1e12
"""Norms between which squares and their sums stay inside float32's range."""


def effective_delta(kind: str, layer: LayerState, weight: Tensor) -> Tensor:
    """Compute what a layer's factors add to a weight at strength 1, at least in float32.

    The base's weight is `[out, in]`, or `[out, in, *kernel]` of a convolution, and so is the
    result. Only DoRA, and a kind that multiplies the weight, look at its values.

    Raises:
        AdapterError: When the factors are of another size than the weight.
    """
    check_size(kind, layer, tuple(weight.shape))
    delta = layer_delta(kind, layer, weight).reshape(weight.shape)
    magnitude = layer.tensors.get(DORA_SCALE)
    if magnitude is None:
        return delta.to(torch.promote_types(delta.dtype, torch.float32))
    dtype = torch.promote_types(torch.promote_types(delta.dtype, weight.dtype), torch.float32)
    own = weight.to(dtype)
    total = own + delta
    if axis_of(magnitude) == "output":
        squares = total.flatten(1).square().sum(dim=1)
        shape = (-1, *(1,) * (weight.dim() - 1))
    else:
        # A convolution's column is all places of its window.
        squares = total.flatten(2).square().sum(dim=2) if weight.dim() > 2 else total.square()
        squares = squares.sum(dim=0)
        shape = (1, -1, *(1,) * (weight.dim() - 2))
    stretch = magnitude_ratio(magnitude.to(dtype).reshape(shape), squares.sqrt().reshape(shape))
    return total.mul_(stretch).sub_(own)


def stretch_of(layer: LayerState, weight: Tensor) -> float | None:
    """Ratio of a DoRA's magnitudes to the norms of a weight `[out, in]`: the median over them.

    None without a magnitude and where nothing compares.
    """
    magnitude = layer.tensors.get(DORA_SCALE)
    if magnitude is None or weight.dim() != 2:
        return None
    own, stored = squared_norms(weight, axis_of(magnitude)).sqrt(), magnitude.flatten()
    there = own > 0
    if own.numel() != stored.numel() or not bool(there.any()):
        return None
    return float((stored[there] / own[there]).median())


def check_size(kind: str, layer: LayerState, shape: tuple[int, ...]) -> None:
    """Refuse factors, or their outlines, that make a delta of another size than a weight's shape.

    Raises:
        AdapterError: When they do not fit.
    """
    rows, columns = shape[0], 1
    for side in shape[1:]:
        columns *= side
    found = matrix_sizes(kind, layer)
    if KINDS[kind].multiplies:
        found = found[0], columns
    magnitude = layer.tensors.get(DORA_SCALE)
    sides = () if magnitude is None else tuple(magnitude.shape[:2])
    if found != (rows, columns) or (sides and sides not in ((shape[0], 1), (1, shape[1]))):
        beside = f" with magnitude {sides}" if sides else ""
        raise AdapterError(
            f"a {kind} of {found[0]} x {found[1]}{beside} for a weight of "
            + " x ".join(map(str, shape)),
            "an adapter of the same sizes as the base",
            "Choose the base that the adapter was trained on.",
        )


def delta_norm(kind: str, layer: LayerState) -> float:
    """The Frobenius norm of a layer's delta, before DoRA; the delta is not built.

    To six digits or better. Float32 tells it where the terms of a sum do not nearly cancel and stay
    inside its range; elsewhere it is computed again in float64. Of a kind that multiplies the
    weight, it is that of what the weight is multiplied by for its difference.
    """
    rules = FILE_RULES[kind]
    factors = {name: tensor for name, tensor in layer.tensors.items() if name != DORA_SCALE}
    norm = rules.norm(as_matrices(factors))
    if not _LEAST < norm < _MOST:
        wide = {name: tensor.double() for name, tensor in factors.items()}
        norm = rules.norm(as_matrices(wide))
    return abs(layer_scale(kind, layer)) * norm


Pair = tuple[Tensor, Tensor]
"""``up [out, r]`` and ``down [r, in]``."""


def as_product(kind: str, layer: LayerState) -> Pair:
    """Write a layer's delta, without DoRA, as one product, exactly; the scale is in ``up``."""
    return FILE_RULES[kind].product(as_matrices(layer.tensors), layer_scale(kind, layer))


class SlicedRows:
    """Some rows of a Linear's delta, cut anywhere; of an outline too, and without DoRA.

    Attributes:
        sizes: Number of rows and columns.
        full_rank: The rank at which a product holds the rows, whatever the values are.
        product_rank: The rank of `product`.
    """

    def __init__(self, kind: str, layer: LayerState, cut: RowSlice) -> None:
        rules = FILE_RULES[kind]
        tensors = {name: each for name, each in layer.tensors.items() if name != DORA_SCALE}
        rows, columns = rules.sizes(tensors)
        ranges = row_ranges(cut, rows)
        # Only the blocks that the rows lie in count, and so do their rows of the factors.
        size = rules.block_rows(tensors)
        first = min(start for start, _ in ranges) // size
        last = -(-max(stop for _, stop in ranges) // size)
        for name, _ in rules.row_factors(tensors):
            tensors[name] = tensors[name][first:last]
        self._kind, self._layer = kind, replace(layer, tensors=tensors)
        self._ranges = [(start - first * size, stop - first * size) for start, stop in ranges]
        self.sizes = sum(stop - start for start, stop in ranges), columns
        self.product_rank = rules.product_rank(tensors)
        self.full_rank = min(self.product_rank, *self.sizes)

    def product(self) -> Pair:
        """The rows as one product, exactly."""
        up, down = as_product(self._kind, self._layer)
        return self._taken(up), down

    def delta(self) -> Tensor:
        """The rows, built."""
        return self._taken(layer_delta(self._kind, self._layer))

    def _taken(self, matrix: Tensor) -> Tensor:
        return torch.cat([matrix[start:stop] for start, stop in self._ranges])
