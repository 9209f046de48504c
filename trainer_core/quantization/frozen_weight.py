"""`FrozenWeight`: what a layer owes whose weight is read in each pass."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import torch
from torch import Tensor, nn


class FrozenWeight(nn.Module):
    """A frozen layer whose weight is more, or less, than the numbers of ``weight``.

    No dense copy of the weight outlives a forward pass or a backward pass: autograd keeps none.
    """

    @abstractmethod
    def parts(self) -> dict[str, Tensor]:
        """The tensors that hold the weight, as they are now."""

    @abstractmethod
    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight that it computes with, as numbers in its own shape."""

    def added_bias(self, y: Tensor) -> Tensor | None:
        """The bias `[out]` that is in an output y of this layer; None without one."""
        del y
        return cast("Tensor | None", getattr(self, "bias", None))
