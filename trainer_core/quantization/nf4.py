"""`Nf4`: 4 bits a number, in blocks of 64, as bitsandbytes keeps them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tensors.device_tables import device_table
from ..tensors.widening import looked_up
from .stored_format import Parts, StoredFormat, slices_of_blocks

BLOCK = 64
"""Numbers that share one scale."""

# fmt: off
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)
# fmt: on
"""What 4 bits stand for: quantiles of the normal distribution, scaled to [-1, 1].

Source: Dettmers et al. 2023 (QLoRA), appendix E.
"""


@device_table
def _borders() -> Tensor:
    """Where the nearest level changes, `[15]`."""
    levels = torch.tensor(LEVELS, device="cpu")
    return (levels[:-1] + levels[1:]) / 2


@device_table
def _pairs() -> Tensor:
    """The two levels of each byte, `[256, 2]`."""
    levels = torch.tensor(LEVELS, device="cpu")
    return torch.cartesian_prod(levels, levels)


class Nf4(StoredFormat):
    """``W[i] = absmax[i // 64] * LEVELS[code[i]]``, counted along the rows.

    Parts: ``weight`` uint8 `[blocks, 32]`, two codes in a byte with the first in the upper half,
    ``absmax`` float32 `[blocks, 1]`. Both are bitsandbytes' own, bit for bit.
    """

    name = "nf4"

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """Take the nearest level of each number, divided by the largest of its block."""
        blocks = weight.detach().reshape(-1, BLOCK)
        borders = _borders(blocks)
        absmax = blocks.abs().amax(dim=1, keepdim=True).float()
        codes = torch.empty((len(blocks), BLOCK // 2), dtype=torch.uint8, device=weight.device)
        for part in slices_of_blocks(blocks, 1 << 20):
            ratios = blocks[part].float() * (1.0 / absmax[part].clamp(min=1e-38))
            found = torch.bucketize(ratios, borders, out_int32=True).to(torch.uint8)
            codes[part] = (found[:, ::2] << 4) | found[:, 1::2]
        return {"weight": codes, "absmax": absmax}

    def dense(self, parts: Parts, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Multiply in float32, and round once."""
        codes, absmax = parts["weight"], parts["absmax"]
        pairs = _pairs(codes)
        result = torch.empty(shape, dtype=dtype, device=codes.device)
        blocks = result.view(-1, BLOCK)
        for part in slices_of_blocks(blocks, 1 << 20):
            numbers = looked_up(codes[part].reshape(-1), pairs).view(-1, BLOCK)
            torch.mul(numbers, absmax[part], out=blocks[part])
        return result

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """Half a byte a number, and four a block."""
        numbers = shape[0] * shape[1]
        return numbers // 2 + 4 * (numbers // BLOCK)

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether it consists of whole blocks."""
        return shape[0] * shape[1] % BLOCK == 0
