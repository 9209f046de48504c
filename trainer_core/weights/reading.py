"""Reads one tensor after another, so that little of the file is in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ..quantization.file_format import FileFormat
from ..tensors.rounding import all_finite
from ..tensors.safetensors_reader import map_tensor
from ..tensors.safetensors_writer import DTYPES, TensorInfo
from .header import READABLE, Formats, WeightFile


class TensorReader:
    """Reads weights from a file that is mapped into memory one tensor at a time.

    What is mapped and was read counts as this process's memory, and a whole file that is larger
    than the machine's memory cannot be mapped everywhere. Every result is a copy: the file may
    change or go while it is used.

    Args:
        file: The opened file.
        formats: How its weights become numbers.
        device: Where the results are kept.
    """

    def __init__(self, file: WeightFile, formats: Formats, device: torch.device) -> None:
        self._file = file
        self._formats = formats
        self._device = device

    def read(self, name: str, rows: Sequence[tuple[int, int]], dtype: torch.dtype) -> list[Tensor]:
        """Read a tensor and cut it into parts along its first axis.

        A scaled weight is multiplied by its scale in the dtype of the result, as ComfyUI does it;
        a packed one is read as its format says.

        Args:
            name: The tensor's name without prefix.
            rows: Start and end of each part.
            dtype: Of the parts.

        Returns:
            One copy for each part, in the order of ``rows``.

        Raises:
            BaseModelError: When the file cannot be read, or a scale is not finite.
        """
        if name in self._file.packed:
            return [self._dense(name, each, dtype) for each in rows]
        scale, raw = self._scale(name), self._tensor(name)
        parts = []
        for start, end in rows:
            own = scale if scale is None or scale.dim() == 0 else scale[start:end]
            parts.append(self._convert(raw[start:end], own, dtype))
        return parts

    def stored(self, name: str) -> Tensor:
        """A copy of a tensor as it lies in the file, in its own number format, without its scale.

        Raises:
            BaseModelError: When the file cannot be read, or the format is none of torch's.
        """
        self.format_of(name)
        return self._tensor(name).clone()

    def format_of(self, name: str) -> torch.dtype:
        """The number format of a tensor as it lies in the file.

        Raises:
            BaseModelError: When it is none of torch's.
        """
        stored = self._file.tensors[name].code
        if stored not in DTYPES:
            raise self._file.broken(f"{name} is stored as {stored}", READABLE)
        return DTYPES[stored]

    def packed(self, name: str, rows: tuple[int, int]) -> tuple[FileFormat, dict[str, Tensor]]:
        """Copy rows of a weight as it is packed in the file.

        Args:
            name: A name in the file's ``packed``.
            rows: Start and end.

        Returns:
            How it is read, and its parts.

        Raises:
            BaseModelError: When the file cannot be read, or a scale is not finite.
        """
        packed = self._file.packed[name]
        stored = {part: self._mapped(info) for part, info in packed.parts.items()}
        parts = packed.stored.take(stored, *rows)
        odd = next((k for k, v in parts.items() if k != "weight" and not all_finite(v)), None)
        if odd is not None:
            raise self._file.broken(
                f"{packed.parts[odd].key} is not finite", "scales that are numbers"
            )
        return packed.stored, {part: value.to(self._device) for part, value in parts.items()}

    def _dense(self, name: str, rows: tuple[int, int], dtype: torch.dtype) -> Tensor:
        stored, parts = self.packed(name, rows)
        return stored.dense(parts, (rows[1] - rows[0], self._file.tensors[name].shape[1]), dtype)

    def _convert(self, raw: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
        if self._device.type == "cuda":
            raw = raw.to(self._device)  # 8-bit weights are the smaller freight
        value = widened(raw, dtype)
        if scale is not None:
            value *= scale.to(value)
        return value.to(self._device)

    def _scale(self, name: str) -> Tensor | None:
        scale = self._formats.scales.get(name)
        if scale is None:
            return None
        value = self._tensor(scale).float()
        if not all_finite(value):
            raise self._file.broken(f"{scale} is not finite", "a scale that is a number")
        return value.reshape(()) if value.numel() == 1 else value

    def _tensor(self, name: str) -> Tensor:
        return self._mapped(self._file.tensors[name])

    def _mapped(self, info: TensorInfo) -> Tensor:
        try:
            return map_tensor(self._file.path, info)
        except (OSError, ValueError) as error:
            raise self._file.broken(
                f"{info.key} cannot be read ({error})", "a whole file of weights"
            ) from error


_PART = 1 << 16
"""Numbers that are looked up at once: what NumPy makes of them in between stays in the cache."""

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Size in bytes to integers of that size: NumPy has no bfloat16, and only copies."""


def widened(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy a tensor into a format of at least 16 bits; bit for bit what ``values.to(dtype)`` gives.

    Args:
        values: Of any number format and device.
        dtype: A floating-point format of 16, 32 or 64 bits.

    Returns:
        A tensor of its own, of the same shape.
    """
    if values.dtype != torch.float8_e4m3fn or not values.is_cpu:
        return values.to(dtype, copy=True)
    table = torch.arange(256, dtype=torch.uint8).view(values.dtype).to(dtype)
    result = torch.empty(values.shape, dtype=dtype)
    integers = _INTEGERS[dtype.itemsize]
    entries, found = table.view(integers).numpy(), result.view(-1).view(integers).numpy()
    codes = values.contiguous().view(torch.uint8).view(-1).numpy()

    threads = torch.get_num_threads()

    def look_up(thread: int) -> None:
        for start in range(thread * _PART, len(codes), threads * _PART):
            part = slice(start, start + _PART)
            # No code lies outside the table. Told that, NumPy writes without a copy in between.
            np.take(entries, codes[part], out=found[part], mode="clip")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(look_up, range(threads)))
    return result
