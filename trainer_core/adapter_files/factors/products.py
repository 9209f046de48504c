"""A layer's delta, or some rows of it, as one low-rank product.

Rows of a product are rows of its first factor. Those of a Kronecker product ``kron(A, B)`` are of
no other Kronecker product, but where they begin and end between the blocks of B; as the product
``kron(A1, B1) kron(A2, B2)`` with ``A = A1 A2`` and ``B = B1 B2`` they can be cut anywhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.registry import FILE_RULES, layer_delta, layer_scale
from ...types import LayerState
from ..names.row_slices import RowSlice, row_ranges

Pair = tuple[Tensor, Tensor]
"""``up [out, r]`` and ``down [r, in]``."""


def as_product(kind: str, layer: LayerState) -> Pair:
    """Write a layer's delta, without DoRA, as one product, exactly; the scale is in ``up``."""
    return FILE_RULES[kind].product(as_matrices(layer.tensors), layer_scale(kind, layer))


class SlicedRows:
    """Some rows of a Linear's delta, cut anywhere.

    Args:
        kind: The layer's.
        layer: The layer, or its outline; its DoRA magnitude is passed over.
        cut: The rows.

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
