"""ComfyUI's integer formats: int8_tensorwise, convrot_w4a4 and asym_w4a8_int8.

A weight may have been rotated before it was rounded, each group of a row's numbers by the same
orthogonal matrix, which spreads outliers. It is symmetric, so that reading rotates once more.

Source: ComfyUI, ``comfy/quant_ops.py`` and ``comfy/ops.py``; comfy-kitchen,
``backends/eager/{quantization,convrot_w4a4,w4a8_int8}.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..tensors.device_tables import device_table
from .file_format import FileFormat
from .stored_format import Parts


@device_table
def _matrix(group: int, dtype: torch.dtype) -> Tensor:
    """The regular Hadamard matrix of a size, divided."""
    base = 1 - 2 * torch.eye(4, dtype=dtype, device="cpu").flip(0)
    matrix = base
    while len(matrix) < group:
        matrix = torch.kron(matrix, base)
    return matrix / group**0.5


def _rotated(weight: Tensor, group: int) -> Tensor:
    """Rotate each group of a row's numbers."""
    matrix = _matrix(weight, group, weight.dtype)
    with torch.autocast(weight.device.type, enabled=False):  # which would round it to 16 bits
        return torch.matmul(weight.view(len(weight), -1, group), matrix).flatten(1)


def is_rotation(group: int, width: int) -> bool:
    """Whether rows of a width can be rotated in groups: a power of four that divides it."""
    power = group >= 4 and group & (group - 1) == 0 and group.bit_length() % 2 == 1
    return power and width % group == 0


def _nibbles(packed: Tensor) -> Tensor:
    """The two numbers of 0 to 15 in each byte of an int8 tensor, the lower half first."""
    codes = packed.view(torch.uint8)
    return torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)


@dataclass(frozen=True)
class Int8Tensorwise(FileFormat):
    """Numbers of 8 bits with a scale for the weight or for each row.

    Parts: ``weight`` int8 `[out, in]`; ``weight_scale`` float32 `[out, 1]`, also where the file has
    one for all.

    Attributes:
        group: Numbers that are rotated together; 0 where none are.
    """

    group: int = 0
    name = "int8_tensorwise"
    by_row = frozenset({"weight", "weight_scale"})

    def numbers(self, parts: Parts, dtype: torch.dtype) -> Tensor:
        """Multiply in float32, and rotate in it."""
        del dtype
        values = parts["weight"].float() * parts["weight_scale"]
        return _rotated(values, self.group) if self.group else values

    def take(self, stored: Parts, start: int, end: int) -> dict[str, Tensor]:
        """Copy the parts of some rows, a scale for each."""
        scale = stored["weight_scale"].float().reshape(-1, 1).expand(len(stored["weight"]), 1)
        return super().take({**stored, "weight_scale": scale}, start, end)

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """One byte a number, and four a row."""
        return shape[0] * shape[1] + 4 * shape[0]


@dataclass(frozen=True)
class ConvRotW4A4(FileFormat):
    """Numbers of -8 to 7 with a scale for each row, rotated.

    Parts: ``weight`` int8 `[out, in / 2]`, the lower half of a byte first; ``weight_scale`` float32
    `[out, 1]`.

    Attributes:
        group: Numbers that are rotated together.
    """

    group: int = 256
    name = "convrot_w4a4"
    by_row = frozenset({"weight", "weight_scale"})

    def numbers(self, parts: Parts, dtype: torch.dtype) -> Tensor:
        """Multiply in float32, and rotate in it."""
        del dtype
        codes = _nibbles(parts["weight"]).to(torch.int8)
        signed = torch.where(codes >= 8, codes - 16, codes).float()
        return _rotated(signed * parts["weight_scale"], self.group)

    def take(self, stored: Parts, start: int, end: int) -> dict[str, Tensor]:
        """Copy the parts of some rows."""
        scale = stored["weight_scale"].float().reshape(-1, 1)
        return super().take({**stored, "weight_scale": scale}, start, end)

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """Half a byte a number, and four bytes a row."""
        return shape[0] * shape[1] // 2 + 4 * shape[0]


@dataclass(frozen=True)
class AsymW4A8(FileFormat):
    """One of 16 numbers for each, with a scale for each run and each row, rotated.

    The product with a run's scale is rounded to a whole number of 8 bits, because those are what
    ComfyUI computes with.

    Parts: ``weight`` int8 `[out, in / 2]`, the lower half of a byte first; ``weight_s_rel``
    float8_e4m3fn or float32 `[out, in / run]`; ``weight_s_channel`` float32 `[out, 1]`;
    ``weight_codebook`` float32 `[16]`, which may be absent and means -8 to 7 then.

    Attributes:
        run: Numbers with a scale in common.
        group: Numbers that are rotated together.
        codebook: Whether there is one.
        scale_bytes: Of the scale of a run.
    """

    run: int = 16
    group: int = 256
    codebook: bool = True
    scale_bytes: int = 1
    name = "asym_w4a8_int8"
    by_row = frozenset({"weight", "weight_s_rel", "weight_s_channel"})

    def numbers(self, parts: Parts, dtype: torch.dtype) -> Tensor:
        """Multiply in float32, and rotate in the dtype of the result."""
        codes = _nibbles(parts["weight"])
        book = parts.get("weight_codebook")
        values = codes.float() - 8 if book is None else book[codes.int()]
        scales = parts["weight_s_rel"].float()
        steps = (values.view(*scales.shape, -1) * scales.unsqueeze(-1)).flatten(1)
        whole = steps.round().clamp(-127, 127).to(torch.int8).float()
        return _rotated((whole * parts["weight_s_channel"]).to(dtype), self.group)

    def take(self, stored: Parts, start: int, end: int) -> dict[str, Tensor]:
        """Copy the parts of some rows."""
        plain = {**stored, "weight_s_channel": stored["weight_s_channel"].float().reshape(-1, 1)}
        if "weight_codebook" in stored:
            plain["weight_codebook"] = stored["weight_codebook"].float().reshape(-1)
        return super().take(plain, start, end)

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """Half a byte a number, a scale for each run, four a row, and 64 for a codebook."""
        numbers, book = shape[0] * shape[1], 64 if self.codebook else 0
        return numbers // 2 + numbers // self.run * self.scale_bytes + 4 * shape[0] + book
