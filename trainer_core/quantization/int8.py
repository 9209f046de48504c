"""`Int8Rows`: whole numbers of 8 bits with one scale for each row, also of a rotated weight."""

from __future__ import annotations

import torch
from torch import Tensor

from .rotation import gain, rotate
from .stored_format import Parts, StoredFormat

STEPS = 127
"""Steps to one side of 0: -128 is not used, so that a row and its negative are kept alike."""


class Int8Rows(StoredFormat):
    """``W[i, j] = scale[i] * weight[i, j]``, with the row's largest number at 127.

    Parts: ``weight`` int8 `[out, in]`, ``weight_scale`` float32 `[out, 1]`.
    """

    name = "int8"
    eight_bit = True

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """Round each row to 255 steps; a row of zeros has the scale 0."""
        values = weight.detach().float()
        scale = values.abs().amax(dim=1, keepdim=True) / STEPS
        steps = values / torch.where(scale > 0, scale, 1.0)
        return {"weight": steps.round_().to(torch.int8), "weight_scale": scale}

    def dense(self, parts: Parts, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Multiply in float32, and round once."""
        # On a GPU nothing is made in between.
        result = torch.empty(shape, dtype=dtype, device=parts["weight"].device)
        return torch.mul(parts["weight"], parts["weight_scale"], out=result)

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """One byte a number, and four a row."""
        return shape[0] * shape[1] + 4 * shape[0]


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
