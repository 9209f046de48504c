"""`TensorReader`: a base's tensors one after another, so that little of the file is in memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ..quantization.file_format import FileFormat
from ..tensors.rounding import all_finite
from ..tensors.safetensors_reader import map_tensor
from ..tensors.safetensors_writer import DTYPES, TensorInfo
from ..tensors.widening import widened
from .header import READABLE, Formats, WeightFile

_AT_ONCE = 1 << 22
"""Bytes that are read ahead with one call."""


class TensorReader:
    """Reads weights from a file that is mapped into memory one tensor at a time.

    What is mapped and was read counts as this process's memory, and a whole file that is larger
    than the machine's memory cannot be mapped everywhere. So every result is a copy, and the file
    may change or go while it is used, unless the caller wants it otherwise.

    Args:
        device: Where the results are kept; an attribute, too.
        mapped: Whether a result that is stored as it is wanted is a view into the mapped file, and
            no copy.
    """

    def __init__(
        self, file: WeightFile, formats: Formats, device: torch.device, mapped: bool = False
    ) -> None:
        self._file = file
        self._formats = formats
        self.device = device
        self._mapped = mapped

    def on(self, device: torch.device) -> TensorReader:
        """One of the same file, for results on another device."""
        return TensorReader(self._file, self._formats, device)

    def read_ahead(self, name: str) -> None:
        """Bring the bytes of a tensor into the system's cache: a mapping reads as they are needed.

        Raises:
            BaseModelError: When the file cannot be read.
        """
        packed = self._file.packed.get(name)
        infos = [self._file.tensors[name]] if packed is None else packed.parts.values()
        for info in infos:
            with self._readable(info), self._file.path.open("rb", buffering=0) as file:
                file.seek(info.start)
                left, room = info.size, memoryview(bytearray(min(info.size, _AT_ONCE)))
                while left > 0 and (count := file.readinto(room[:left])):
                    left -= count

    def read(self, name: str, rows: Sequence[tuple[int, int]], dtype: torch.dtype) -> list[Tensor]:
        """Read a tensor and cut it into parts along its first axis.

        A scaled weight is multiplied by its scale in the dtype of the result, as ComfyUI does it;
        a packed one is read as its format says.

        Args:
            name: The tensor's name without prefix.
            rows: Start and end of each part.

        Returns:
            One tensor for each part, in the order of ``rows``.

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

    def has(self, name: str, dtype: torch.dtype) -> bool:
        """Whether the file has the very numbers of a tensor in a format."""
        plain = name not in self._file.packed and name not in self._formats.scales
        return plain and self._file.tensors[name].code in DTYPES and self.format_of(name) == dtype

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, as numbers."""
        return tuple(self._file.tensors[name].shape)

    def scale_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of a weight's scale as it lies in the file; None for a weight without one."""
        scale = self._formats.scales.get(name)
        return None if scale is None else self._file.tensors[scale].shape

    def kept(self, name: str, rows: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """Rows of a tensor in their own number format, and their scale: one or one a row.

        Raises:
            BaseModelError: When the file cannot be read, or a scale is not finite.
        """
        part, scale = slice(*rows), self._scale(name)
        values = self._tensor(name)[part].to(self.device, copy=not self._mapped)
        if scale is None:
            return values, None
        return values, (scale if scale.dim() == 0 else scale[part]).to(self.device, copy=True)

    def packed_as(self, name: str) -> FileFormat | None:
        """How a weight is packed in the file; None for one that is not."""
        packed = self._file.packed.get(name)
        return None if packed is None else packed.stored

    def packed(self, name: str, rows: tuple[int, int]) -> tuple[FileFormat, dict[str, Tensor]]:
        """Copy rows of a weight as it is packed in the file.

        Args:
            name: A name in the file's ``packed``.

        Raises:
            BaseModelError: When the file cannot be read, or a scale is not finite.
        """
        packed = self._file.packed[name]
        stored = {part: self._map(info) for part, info in packed.parts.items()}
        parts = packed.stored.take(stored, *rows)
        odd = next((k for k, v in parts.items() if k != "weight" and not all_finite(v)), None)
        if odd is not None:
            raise self._file.broken(
                f"{packed.parts[odd].key} is not finite", "scales that are numbers"
            )
        return packed.stored, {part: value.to(self.device) for part, value in parts.items()}

    def _dense(self, name: str, rows: tuple[int, int], dtype: torch.dtype) -> Tensor:
        stored, parts = self.packed(name, rows)
        return stored.dense(parts, (rows[1] - rows[0], self._file.tensors[name].shape[1]), dtype)

    def _convert(self, raw: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
        if self._mapped and scale is None and raw.dtype == dtype:
            return raw
        if self.device.type == "cuda":
            raw = raw.to(self.device)  # 8-bit weights are the smaller freight
        value = widened(raw, dtype)
        if scale is not None:
            value *= scale.to(value)
        return value.to(self.device)

    def _scale(self, name: str) -> Tensor | None:
        scale = self._formats.scales.get(name)
        if scale is None:
            return None
        value = self._tensor(scale).float()
        if not all_finite(value):
            raise self._file.broken(f"{scale} is not finite", "a scale that is a number")
        return value.reshape(()) if value.numel() == 1 else value

    def _tensor(self, name: str) -> Tensor:
        return self._map(self._file.tensors[name])

    def _map(self, info: TensorInfo) -> Tensor:
        with self._readable(info):
            return map_tensor(self._file.path, info)

    @contextlib.contextmanager
    def _readable(self, info: TensorInfo) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise self._file.broken(
                f"{info.key} cannot be read ({error})", "a whole file of weights"
            ) from error


def ahead(names: Iterable[str], readers: Mapping[str, TensorReader]) -> Iterator[str]:
    """Names of tensors, each when its bytes are in the system's cache; meanwhile the next is read.

    Args:
        names: In the order in which they are worked on.

    Raises:
        BaseModelError: When a file cannot be read.
    """
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        coming = None
        for name, following in itertools.pairwise([None, *names, None]):
            if coming is not None:
                coming.result()
            if following is not None:
                coming = pool.submit(readers[following].read_ahead, following)
            if name is not None:
                yield name
