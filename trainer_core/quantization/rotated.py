"""`RotatedInt8Rows`: whole numbers of 8 bits of a weight whose rows are rotated first."""

from __future__ import annotations

import torch
from torch import Tensor

from .int8 import Int8Rows
from .rotation import gain, rotate
from .stored_format import Parts


class RotatedInt8Rows(Int8Rows):
    """`Int8Rows` of the rotated weight, for products in 8 bits with an input that has outliers.

    A few inputs of a layer are often many times larger than the rest, which then have only a few
    steps. The product rotates the input as the weight was rotated, and is what it was.
    """

    name = "int8_rotated"
    rotates = True
    planned = False

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """Rotate, so that a product with a rotated input is that of the two as they were."""
        values = weight.detach().float()
        return super().pack(rotate(values) / gain(values.shape[1]))

    def dense(self, parts: Parts, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Rotate back in float32, and round once."""
        return rotate(super().dense(parts, shape, torch.float32)).to(dtype)
