"""A layer's delta, or some rows of it, as one low-rank product.

Rows of a product are rows of its first factor. Those of a Kronecker product ``kron(A, B)`` are of
no other Kronecker product, but where they begin and end between the blocks of B; as the product
``kron(A1, B1) kron(A2, B2)`` with ``A = A1 A2`` and ``B = B1 B2`` they can be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.loha import khatri_rao
from ...adapters.kinds.registry import layer_delta, layer_scale
from ...types import LayerState
from ..names.row_slices import Cut, row_ranges
from .fuse import matrix_sizes, split_sizes

Pair = tuple[Tensor, Tensor]
"""``up [out, r]`` and ``down [r, in]``."""


def as_product(kind: str, layer: LayerState) -> Pair:
    """Write a layer's delta as one product, exactly.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        layer: Without DoRA.

    Returns:
        ``up`` and ``down``; the scale is in ``up``.
    """
    factors, scale = as_matrices(layer.tensors), layer_scale(kind, layer)
    if kind == "lora":
        return factors["lora_up"] * scale, factors["lora_down"]
    if kind == "loha":
        down, up = khatri_rao(factors)
        return up * scale, down
    (first_up, first_down), (second_up, second_down) = (
        _factor_pair(factors, name) for name in ("lokr_w1", "lokr_w2")
    )
    return torch.kron(first_up * scale, second_up), torch.kron(first_down, second_down)


def product_rank(kind: str, tensors: Mapping[str, Tensor]) -> int:
    """The rank of `as_product`, read off the shapes."""
    factors = as_matrices(tensors)
    if kind == "lora":
        return factors["lora_down"].shape[0]
    if kind == "loha":
        return factors["hada_w1_b"].shape[0] * factors["hada_w2_b"].shape[0]
    ranks = [
        min(factors[name].shape) if name in factors else factors[f"{name}_b"].shape[0]
        for name in ("lokr_w1", "lokr_w2")
    ]
    return ranks[0] * ranks[1]


class LokrRows:
    """Some rows of a LoKr's delta.

    Args:
        layer: The LoKr, or its outline; DoRA's lengths are passed over.
        cut: The rows.

    Attributes:
        sizes: Number of rows and columns.
        full_rank: The rank at which a LoRA holds the rows, whatever the values are.
        product_rank: The rank of `product`.
    """

    def __init__(self, layer: LayerState, cut: Cut) -> None:
        tensors = {name: each for name, each in layer.tensors.items() if name != DORA_SCALE}
        rows, columns = matrix_sizes("lokr", tensors)
        ranges = row_ranges(cut, rows)
        # Only the blocks that the rows lie in count, and so do their rows of the first factor.
        size = split_sizes(as_matrices(tensors))[0][1]
        first = min(start for start, _ in ranges) // size
        last = -(-max(stop for _, stop in ranges) // size)
        name = "lokr_w1" if "lokr_w1" in tensors else "lokr_w1_a"
        tensors[name] = tensors[name][first:last]
        self._layer = replace(layer, tensors=tensors)
        self._ranges = [(start - first * size, stop - first * size) for start, stop in ranges]
        self.sizes = sum(stop - start for start, stop in ranges), columns
        self.product_rank = product_rank("lokr", tensors)
        self.full_rank = min(self.product_rank, *self.sizes)

    def product(self) -> Pair:
        """The rows as one product, exactly."""
        up, down = as_product("lokr", self._layer)
        return self._taken(up), down

    def delta(self) -> Tensor:
        """The rows, built."""
        return self._taken(layer_delta("lokr", self._layer))

    def _taken(self, matrix: Tensor) -> Tensor:
        return torch.cat([matrix[start:stop] for start, stop in self._ranges])


def _factor_pair(factors: Mapping[str, Tensor], name: str) -> Pair:
    if name not in factors:
        return factors[f"{name}_a"], factors[f"{name}_b"]
    whole = factors[name]
    identity = torch.eye(min(whole.shape), dtype=whole.dtype)
    return (whole, identity) if whole.shape[1] <= whole.shape[0] else (identity, whole)


__all__ = ["LokrRows", "Pair", "as_product", "product_rank"]
