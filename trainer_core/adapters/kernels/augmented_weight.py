"""`Room`: a weight's memory with free columns beside it, for a product that holds both."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base.weight import StorageMark
from .fused import make_room


class Room:
    """The memory that a weight was moved into; it lives as long as the weight lies there."""

    def __init__(self) -> None:
        self._mark: StorageMark | None = None

    def around(self, weight: Tensor, columns: int) -> Tensor:
        """Weight and free columns as one matrix; moves the weight, which is then held once.

        A weight that was moved away meanwhile (to another device or dtype, or replaced) gets a new
        place.

        Args:
            weight: `[out, in]`, dense.
            columns: How many columns the adapter needs.

        Returns:
            `[out, in + columns]`.
        """
        width = weight.shape[1] + columns
        if not self._holds(weight) or weight.stride() != (width, 1):
            with torch.inference_mode(False), torch.no_grad():
                wide = make_room(weight, columns)
                weight.data = wide[:, : weight.shape[1]]
                self._mark = StorageMark.of(wide)
        return weight.data.as_strided((weight.shape[0], width), (width, 1))

    def release(self, weight: Tensor) -> None:
        """Give the weight a place of its own again."""
        if self._holds(weight):
            weight.data = weight.data.contiguous()
        self._mark = None

    def _holds(self, weight: Tensor) -> bool:
        return self._mark is not None and self._mark == StorageMark.of(weight)
