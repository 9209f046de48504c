"""The augmented weight: a frozen weight with free columns beside it, for one product of both."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base.weight import StorageMark


class AugmentedWeight:
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
                augmented = augment(weight, columns)
                weight.data = augmented[:, : weight.shape[1]]
                self._mark = StorageMark.of(augmented)
        return weight.data.as_strided((weight.shape[0], width), (width, 1))

    def release(self, weight: Tensor) -> None:
        """Give the weight a place of its own again."""
        if self._holds(weight):
            weight.data = weight.data.contiguous()
        self._mark = None

    def _holds(self, weight: Tensor) -> bool:
        return self._mark is not None and self._mark == StorageMark.of(weight)


def augment(weight: Tensor, columns: int) -> Tensor:
    """Copy a weight into a matrix with free columns at its right, for one product of both.

    Args:
        weight: `[out, in]`.
        columns: How many columns the adapter needs.

    Returns:
        `[out, in + columns]`; the free columns are zero.
    """
    augmented = weight.new_zeros(weight.shape[0], weight.shape[1] + columns)
    augmented[:, : weight.shape[1]] = weight
    return augmented


def augmented_product(
    rows: Tensor, augmented: Tensor, bias: Tensor | None, hidden: Tensor, up: Tensor
) -> Tensor:
    """``[x | hidden] @ [W | up].T + bias``, whose sums are rounded once."""
    inputs = rows.shape[1]
    # What is saved for backward is the weight's own columns, which stay as they are; `data`
    # keeps autograd from taking the new values of the free columns for a change of those.
    augmented.data[:, inputs:] = up
    return F.linear(torch.cat([rows, hidden], dim=1), augmented, bias)
