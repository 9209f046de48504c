"""ComfyUI's nvfp4 and mxfp8: small floating-point numbers with a scale for each run of a row.

Files have the scales in tiles of 128 rows and 4 runs, as tensor cores read them. They are kept here
row by row, so that rows can be taken from a weight.

Source: ComfyUI, ``comfy/quant_ops.py``; comfy-kitchen, ``backends/eager/quantization.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .file_format import FileFormat
from .stored_format import Parts

_TILE_ROWS, _TILE_COLUMNS = 128, 4


def tiled_count(rows: int, columns: int) -> int:
    """Number of scales in a file for so many rows, and runs of a row: whole tiles."""
    tiles = -(-rows // _TILE_ROWS) * -(-columns // _TILE_COLUMNS)
    return tiles * _TILE_ROWS * _TILE_COLUMNS


def _untiled(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Put scales in tiles into rows, `[rows, columns]`; a new tensor.

    In a tile the rows 0, 32, 64 and 96 come first, then 1, 33, 65 and 97, and so on.
    """
    down, across = -(-rows // _TILE_ROWS), -(-columns // _TILE_COLUMNS)
    tiles = scales.reshape(down, across, 32, 4, _TILE_COLUMNS).permute(0, 3, 2, 1, 4)
    return tiles.reshape(down * _TILE_ROWS, -1)[:rows, :columns].clone()


class _BlockScaled(FileFormat):
    by_row = frozenset({"weight", "weight_scale"})
    run: int
    """Numbers with a scale in common."""

    per_byte: int = 1
    """Numbers in a byte of the weight."""

    def take(self, stored: Parts, start: int, end: int) -> dict[str, Tensor]:
        """Copy the parts of some rows, their scales in rows."""
        rows, width = stored["weight"].shape
        # Tiles are bytes for torch: it moves no 8-bit floats on every device.
        codes = stored["weight_scale"].view(torch.uint8)
        scales = _untiled(codes, rows, width * self.per_byte // self.run)
        plain = {**stored, "weight_scale": scales.view(stored["weight_scale"].dtype)}
        return super().take(plain, start, end)


class Nvfp4(_BlockScaled):
    """Numbers of 4 bits (E2M1), an E4M3 scale for 16 of them, and one for all.

    Parts: ``weight`` uint8 `[out, in / 2]`, the upper half of a byte first; ``weight_scale``
    float8_e4m3fn `[out, in / 16]`; ``weight_scale_2`` float32 `[]`.
    """

    name = "nvfp4"
    run = 16
    per_byte = 2

    def numbers(self, parts: Parts, dtype: torch.dtype) -> Tensor:
        """Multiply both scales, and then the numbers, in the dtype of the result."""
        packed = parts["weight"].to(torch.int16)
        codes = torch.stack([packed >> 4, packed & 15], dim=-1)
        # As the first bits of a float16 they mean the same, but for the bias of the exponent.
        halves = ((codes & 8) << 12) | ((codes & 7) << 9)
        values = halves.view(torch.float16).to(dtype) * 2**14
        scales = parts["weight_scale_2"].to(dtype) * parts["weight_scale"].to(dtype)
        return (values.view(*scales.shape, -1) * scales.unsqueeze(-1)).flatten(1)

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """Half a byte a number, one for 16 of them, and four."""
        return shape[0] * shape[1] // 2 + shape[0] * shape[1] // self.run + 4

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether both sides are multiples of 16: files fill up what is not."""
        return shape[0] % 16 == 0 and shape[1] % 16 == 0


class Mxfp8(_BlockScaled):
    """Numbers in E4M3, and a power of two for 32 of them.

    Parts: ``weight`` float8_e4m3fn `[out, in]`; ``weight_scale`` uint8 `[out, in / 32]`, the
    exponent with 127 added, and 0 for a scale of 0.
    """

    name = "mxfp8"
    run = 32

    def numbers(self, parts: Parts, dtype: torch.dtype) -> Tensor:
        """Multiply in float32."""
        del dtype
        scales = (parts["weight_scale"].to(torch.int32) << 23).view(torch.float32)
        values = parts["weight"].float().view(*scales.shape, -1)
        return (values * scales.unsqueeze(-1)).flatten(1)

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """One byte a number, and one for 32 of them."""
        return shape[0] * shape[1] + shape[0] * shape[1] // self.run

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether both sides are multiples of 32: files fill up what is not."""
        return shape[0] % 32 == 0 and shape[1] % 32 == 0
