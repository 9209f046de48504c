"""`Fp8`: floating-point numbers of 8 bits, as files have them and as a weight is packed."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..tensors.widening import widened
from .stored_format import Parts, StoredFormat

LARGEST = 448.0
"""The largest number of e4m3fn."""

Scales = Literal["none", "tensor", "rows"]


class Fp8(StoredFormat):
    """``W = weight``, or ``scale * weight`` with one scale for the tensor or one for each row.

    Parts: ``weight`` e4m3fn or, in a file, e5m2 `[out, in]`, and ``weight_scale`` float32, `[]` or
    `[out, 1]`. It is packed with a scale for each row: on Gaussian weights that is as exact as one
    for the tensor (relative error 0.026), with columns of outliers and rows of different size it
    is better (0.022 against 0.027).
    """

    def __init__(self, scales: Scales) -> None:
        self.scales = scales

    name = "fp8"
    eight_bit = True

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """Put the largest number of the tensor, or of each row, at `LARGEST`, and round."""
        values = weight.detach().float()
        if self.scales == "none":
            return {"weight": values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)}
        sizes = values.abs()
        largest = sizes.amax() if self.scales == "tensor" else sizes.amax(dim=1, keepdim=True)
        # A scale that bfloat16 holds is the same number in every precision that is computed in.
        scale = (largest / LARGEST).bfloat16().float()
        steps = values / torch.where(scale > 0, scale, 1.0)
        steps = steps.clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        return {"weight": steps, "weight_scale": scale}

    def dense(self, parts: Parts, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Multiply in the dtype of the result, as ComfyUI does it."""
        del shape
        values = widened(parts["weight"], dtype)
        scale = parts.get("weight_scale")
        return values if scale is None else values.mul_(scale.to(dtype))

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """One byte a number, and four a scale."""
        return shape[0] * shape[1] + 4 * {"none": 0, "tensor": 1, "rows": shape[0]}[self.scales]
