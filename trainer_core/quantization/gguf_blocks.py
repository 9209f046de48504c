"""The formats of GGUF files: blocks of a row's numbers, each with scales of its own.

A block lies in the file as one run of bytes. ``weight`` is uint8 `[out, bytes of a row]`. The
numbers are computed in float32, in the order of the reference, and rounded once to the dtype that
is asked for.

Source: llama.cpp, ``ggml/src/ggml-common.h`` (the blocks) and ``ggml-quants.c``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ..tensors.gguf_reader import GGUF_TYPES
from .file_format import FileFormat
from .stored_format import Parts


class GgufBlocks(FileFormat):
    """A type of GGUF; a subclass has its name and reads its blocks."""

    block: ClassVar[int]
    """Numbers of a block."""

    size: ClassVar[int]
    """Bytes of a block."""

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__
        cls.block, cls.size = GGUF_TYPES[cls.name]

    @abstractmethod
    def values(self, blocks: Tensor) -> Tensor:
        """Read blocks, uint8 `[n, size]`, as float32 that is viewed as `[n, block]`."""

    def numbers(self, parts: Parts, dtype: torch.dtype) -> Tensor:
        """Read all blocks of some rows."""
        del dtype
        weight = parts["weight"]
        return self.values(weight.reshape(-1, self.size)).reshape(len(weight), -1)

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """The bytes of the blocks."""
        return shape[0] * shape[1] // self.block * self.size

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether a row is a number of whole blocks."""
        return shape[1] % self.block == 0


def _half(part: Tensor) -> Tensor:
    """The float16 that pairs of bytes are, as float32."""
    return part.contiguous().view(torch.float16).float()


def _fields(part: Tensor, bits: int, width: int) -> Tensor:
    """Cut bytes into fields of some bits, `[n, fields]`.

    Of each ``width`` bytes in a row the lowest fields of all come first, then the next ones.
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=part.device)
    fields = part.reshape(len(part), -1, 1, width) >> shifts.view(1, 1, -1, 1)
    return (fields & ((1 << bits) - 1)).reshape(len(part), -1)


def _scales_of_six_bits(part: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight offsets of 0 to 63 in twelve bytes."""
    first, second, third = part.split(4, dim=1)
    scales = torch.cat([first & 63, (third & 15) | ((first >> 2) & 48)], dim=1)
    offsets = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 48)], dim=1)
    return scales.float(), offsets.float()


def _spread(scales: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Scales `[n, groups, 1]` and their codes `[n, groups, numbers of a group]` in float32."""
    return scales.unsqueeze(-1), codes.float().view(*scales.shape, -1)


class Q8_0(GgufBlocks):  # noqa: N801
    """A scale, and 32 numbers of 8 bits."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * code``."""
        scale, codes = blocks.split([2, 32], dim=1)
        return codes.contiguous().view(torch.int8).float() * _half(scale)


class Q4_0(GgufBlocks):  # noqa: N801
    """A scale, and 32 numbers of 4 bits around 8."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * (code - 8)``."""
        scale, codes = blocks.split([2, 16], dim=1)
        return _half(scale) * (_fields(codes, 4, 16).float() - 8)


class Q4_1(GgufBlocks):  # noqa: N801
    """A scale, an offset, and 32 numbers of 4 bits."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * code + offset``."""
        scale, offset, codes = blocks.split([2, 2, 16], dim=1)
        return _half(scale) * _fields(codes, 4, 16).float() + _half(offset)


class Q5_0(GgufBlocks):  # noqa: N801
    """A scale, and 32 numbers of 5 bits around 16, the fifth bits apart."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * (code - 16)``."""
        scale, high, low = blocks.split([2, 4, 16], dim=1)
        codes = _fields(low, 4, 16) | (_fields(high, 1, 1) << 4)
        return _half(scale) * (codes.float() - 16)


class Q5_1(GgufBlocks):  # noqa: N801
    """A scale, an offset, and 32 numbers of 5 bits, the fifth bits apart."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * code + offset``."""
        scale, offset, high, low = blocks.split([2, 2, 4, 16], dim=1)
        codes = _fields(low, 4, 16) | (_fields(high, 1, 1) << 4)
        return _half(scale) * codes.float() + _half(offset)


class Q2_K(GgufBlocks):  # noqa: N801
    """16 groups of 16 numbers of 2 bits, with scales and offsets of 4 bits."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * code - offset`` in each group."""
        both, packed, scale, offset = blocks.split([16, 64, 2, 2], dim=1)
        scales, codes = _spread(_half(scale) * (both & 15).float(), _fields(packed, 2, 32))
        return scales * codes - (_half(offset) * (both >> 4).float()).unsqueeze(-1)


class Q3_K(GgufBlocks):  # noqa: N801
    """16 groups of 16 numbers of 3 bits, the third bits apart, with scales of 6 bits."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * code``, where a third bit that is not set takes 4 away."""
        high, low, packed, scale = blocks.split([32, 64, 12, 2], dim=1)
        six = _fields(packed[:, :8], 4, 8) | (_fields(packed[:, 8:], 2, 4) << 4)
        signed = _fields(low, 2, 32).float() - 4 * (1 - _fields(high, 1, 32).float())
        scales, codes = _spread(_half(scale) * (six.float() - 32), signed)
        return scales * codes


class Q4_K(GgufBlocks):  # noqa: N801
    """8 groups of 32 numbers of 4 bits, with scales and offsets of 6 bits."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * code - offset`` in each group."""
        scale, offset, packed, low = blocks.split([2, 2, 12, 128], dim=1)
        return _with_offsets(scale, offset, packed, _fields(low, 4, 32))


class Q5_K(GgufBlocks):  # noqa: N801
    """8 groups of 32 numbers of 5 bits, the fifth bits apart, with scales and offsets of 6 bits."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * code - offset`` in each group."""
        scale, offset, packed, high, low = blocks.split([2, 2, 12, 32, 128], dim=1)
        codes = _fields(low, 4, 32) | (_fields(high, 1, 32) << 4)
        return _with_offsets(scale, offset, packed, codes)


def _with_offsets(scale: Tensor, offset: Tensor, packed: Tensor, codes: Tensor) -> Tensor:
    scales, offsets = _scales_of_six_bits(packed)
    spread, numbers = _spread(_half(scale) * scales, codes)
    return spread * numbers - (_half(offset) * offsets).unsqueeze(-1)


class Q6_K(GgufBlocks):  # noqa: N801
    """16 groups of 16 numbers of 6 bits around 32, the upper two apart, with scales of 8 bits."""

    def values(self, blocks: Tensor) -> Tensor:
        """``scale * (code - 32)`` in each group."""
        low, high, packed, scale = blocks.split([128, 64, 16, 2], dim=1)
        codes = _fields(low, 4, 64) | (_fields(high, 2, 32) << 4)
        own = packed.contiguous().view(torch.int8).float()
        scales, numbers = _spread(_half(scale) * own, codes.float() - 32)
        return scales * numbers


GGUF_FORMATS: dict[str, GgufBlocks] = {
    each.name: each
    for each in (
        *(Q8_0(), Q4_0(), Q4_1(), Q5_0(), Q5_1()),
        *(Q2_K(), Q3_K(), Q4_K(), Q5_K(), Q6_K()),
    )
}
"""Those that are read, by their names in GGUF."""
