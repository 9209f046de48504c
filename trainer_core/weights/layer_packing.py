"""`Packing`: which layers of a base are kept in fewer bits, and in which format."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..quantization.file_format import FileFormat
from ..quantization.formats import FORMATS
from ..quantization.fp8 import Fp8
from ..quantization.stored_format import StoredFormat
from .tensor_reader import TensorReader

_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
_AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Numbers that are packed together: on a GPU a part is some ten launches, and 150 MB for a time."""

_WHOLE_BLOCKS = 64
"""So many rows are whole blocks of every format, whatever their length."""

_PRECISE = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Packing:
    """Which layers of a base are kept in fewer bits.

    Attributes:
        base_format: ``file``, or one of `FORMATS`.
        blocks: Module lists; the Linear layers inside of them are packed.
        device: Where they are packed, and are left; unset: where the rest of the base is.
    """

    base_format: str
    blocks: tuple[str, ...]
    device: torch.device | None = None

    @classmethod
    def of(
        cls, base_format: str, blocks: tuple[str, ...], device: torch.device | None = None
    ) -> Packing | None:
        """What ``memory.base_format`` asks for; None where all is dense."""
        return None if base_format in {"auto", "dense"} else cls(base_format, blocks, device)

    def layer(self, model: nn.Module, name: str) -> nn.Linear | None:
        """The layer that a parameter is the weight of, if it is one of those to be packed."""
        path, _, leaf = name.rpartition(".")
        if leaf != "weight" or not path.startswith(tuple(f"{each}." for each in self.blocks)):
            return None
        module = model.get_submodule(path)
        return module if type(module) is nn.Linear else None

    def format_of(
        self, reader: TensorReader, name: str, shape: tuple[int, int]
    ) -> StoredFormat | None:
        """How rows of a tensor are kept; None where they stay dense. Reads no weight."""
        packed = reader.packed_as(name)
        if packed is not None and self.base_format == "file":
            return packed
        if self.base_format in {"file", "fp8"} and self._is_fp8(reader, name):
            scale = reader.scale_of(name)
            if scale is None:
                return Fp8("none")
            return Fp8("tensor" if all(side == 1 for side in scale) else "rows")
        stored = FORMATS.get(self.base_format)
        return stored if stored is not None and stored.fits(shape) else None

    def read(
        self, stored: StoredFormat, reader: TensorReader, name: str, rows: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Read rows of a tensor as the parts of a format that `format_of` gave.

        They are packed from the numbers that the file has. A GPU may divide with another last bit
        than a CPU.

        Raises:
            BaseModelError: When the file cannot be read, or a scale is not finite.
        """
        if isinstance(stored, FileFormat):
            return reader.packed(name, rows)[1]
        if isinstance(stored, Fp8) and self._is_fp8(reader, name):
            values, scale = reader.kept(name, rows)
            return (
                {"weight": values} if scale is None else {"weight": values, "weight_scale": scale}
            )
        source = reader if self.device is None else reader.on(self.device)
        precision = None if reader.packed_as(name) else reader.format_of(name)
        dtype = precision if precision in _PRECISE else torch.float32
        # Some rows at a time: what is needed in between is several times what is kept.
        at_once = _AT_ONCE.get(source.device.type, _AT_ONCE["cpu"])
        step = max(_WHOLE_BLOCKS, at_once // reader.shape_of(name)[1])
        step -= step % _WHOLE_BLOCKS
        kept: dict[str, Tensor] = {}
        for start in range(*rows, step):
            part_rows = start, min(start + step, rows[1])
            packed = stored.pack(source.read(name, [part_rows], dtype)[0])
            for part, values in packed.items():
                each = len(values) / (part_rows[1] - part_rows[0])  # of a row
                if part not in kept:
                    whole = round(each * (rows[1] - rows[0]))
                    kept[part] = values.new_empty(whole, *values.shape[1:])
                place = round(each * (start - rows[0]))
                kept[part][place : place + len(values)] = values
        return kept

    def leaves_there(self, stored: StoredFormat, reader: TensorReader, name: str) -> bool:
        """Whether `read` may leave a weight of a mapped file where it is."""
        return isinstance(stored, Fp8) and self._is_fp8(reader, name)

    @staticmethod
    def _is_fp8(reader: TensorReader, name: str) -> bool:
        return reader.packed_as(name) is None and reader.format_of(name) in _EIGHT_BITS
