"""`Uint3` and `Uint4`: 3 or 4 bits a number, in groups of 64, as accuracy-recovery adapters need.

Such an adapter is fitted to the rounding errors of one format and makes those of any other larger.
The published ones belong to torchao's ``uint3`` and ``uint4`` of a base in bfloat16.
"""

from __future__ import annotations

from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from ..tensors.device_tables import device_table
from ..tensors.widening import looked_up
from .stored_format import Parts, StoredFormat, slices_of_blocks

GROUP = 64
"""Numbers of a row that share a scale and a zero point."""

_SMALLEST = torch.finfo(torch.float32).eps
"""Of a scale."""


@device_table
def _fields(bits: int, shift: int) -> Tensor:
    """What the fields of each byte add to their codes, the lowest field first: `[256, 8 / bits]`.

    Args:
        bits: Of a field.
        shift: Of the field's lowest bit in the code.
    """
    byte = torch.arange(256, dtype=torch.uint8, device="cpu").unsqueeze(1)
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device="cpu")
    return (byte >> places & (1 << bits) - 1) << shift


class _UnsignedGroups(StoredFormat):
    """``W[i, j] = scale * (code[i, j] - zero)``, with the range of a group on ``0 ... 2^bits - 1``.

    Parts, for the groups of the rows in order: ``weight`` uint8 `[groups, 8 * bits]`, the codes cut
    into planes of 4, 2 or 1 bits, lowest bits first; ``scale`` bfloat16 and ``zero`` uint8, both
    `[groups, 1]`.

    Source: torchao 0.10, ``UIntXWeightOnlyConfig``, whose numbers of a bfloat16 weight these are,
    bit for bit.
    """

    planes: ClassVar[tuple[int, ...]]
    """Bits of each plane, the lowest of the code first."""

    planned = False

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """Round in bfloat16, step by step as torchao does; 0 stays 0."""
        groups = weight.detach().reshape(-1, GROUP)
        count, largest = len(groups), 2 ** sum(self.planes) - 1
        codes = groups.new_empty((count, 8 * sum(self.planes)), dtype=torch.uint8)
        scales = groups.new_empty((count, 1), dtype=torch.bfloat16)
        zeros = groups.new_empty((count, 1), dtype=torch.uint8)
        for part in slices_of_blocks(groups, 1 << 19):
            values = groups[part].to(torch.bfloat16)
            low = values.amin(dim=1, keepdim=True).clamp(max=0)
            high = values.amax(dim=1, keepdim=True).clamp(min=0)
            scale = ((high - low) / float(largest)).clamp(min=_SMALLEST)
            zero = (-(low / scale).round()).clamp(0, largest)
            steps = ((values * (1.0 / scale)).round() + zero).clamp(0, largest)
            scales[part], zeros[part] = scale, zero.to(torch.uint8)
            codes[part] = self._packed(steps.to(torch.uint8))
        return {"weight": codes, "scale": scales, "zero": zeros}

    def _packed(self, codes: Tensor) -> Tensor:
        planes, shift = [], 0
        for bits in self.planes:
            fields = (codes >> shift & (1 << bits) - 1).view(len(codes), -1, 8 // bits)
            byte = fields[..., 0].clone()
            for place in range(1, 8 // bits):
                byte |= fields[..., place] << place * bits
            planes.append(byte)
            shift += bits
        return torch.cat(planes, dim=1)

    def dense(self, parts: Parts, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Multiply whole numbers, which every format holds exactly, and round once."""
        codes, scales, zeros = parts["weight"], parts["scale"], parts["zero"]
        result = torch.empty(shape, dtype=dtype, device=codes.device)
        groups = result.view(-1, GROUP)
        for part in slices_of_blocks(groups, 1 << 19):
            groups[part].copy_(self._unpacked(codes[part])).sub_(zeros[part]).mul_(scales[part])
        return result

    def _unpacked(self, packed: Tensor) -> Tensor:
        shift, fields = 0, []
        planes = packed.split([8 * bits for bits in self.planes], dim=1)
        for bits, plane in zip(self.planes, planes, strict=True):
            fields.append(looked_up(plane.reshape(-1), _fields(packed, bits, shift)))
            shift += bits
        return reduce(Tensor.add_, (each.view(-1, GROUP) for each in fields))

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """The bits of the codes, and three bytes a group."""
        groups = shape[0] * shape[1] // GROUP
        return groups * (8 * sum(self.planes) + 3)

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether a row is a number of whole groups."""
        return shape[1] % GROUP == 0


class Uint3(_UnsignedGroups):
    """8 levels a group."""

    name = "uint3"
    planes = (2, 1)


class Uint4(_UnsignedGroups):
    """16 levels a group."""

    name = "uint4"
    planes = (4,)
