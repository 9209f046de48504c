"""`FileFormat`: a stored format that files come in, and that is only read."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from .stored_format import Parts, StoredFormat

_PART = 1 << 22
"""Numbers that are read at once: what is made of them in between is some bytes for each."""


class FileFormat(StoredFormat):
    """A format of quantized files.

    Attributes:
        by_row: Parts that have a row for each row of the weight; the others hold for all of it.
    """

    by_row: ClassVar[frozenset[str]] = frozenset({"weight"})

    @abstractmethod
    def numbers(self, parts: Parts, dtype: torch.dtype) -> Tensor:
        """Read some rows, whose parts are given: `[rows, in]`, of that dtype or a wider one."""

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """Refuse: files come packed.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{self.name} is read from files and not made")

    def dense(self, parts: Parts, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Read a weight back as numbers, some rows at a time."""
        result = torch.empty(shape, dtype=dtype, device=parts["weight"].device)
        step = max(1, _PART // max(1, shape[1]))
        for start in range(0, shape[0], step):
            rows = {k: v[start : start + step] if k in self.by_row else v for k, v in parts.items()}
            result[start : start + step] = self.numbers(rows, dtype)
        return result

    def take(self, stored: Parts, start: int, end: int) -> dict[str, Tensor]:
        """Copy the parts of some rows of a weight.

        Args:
            stored: All parts as the file has them.
            start: The first row.
            end: The row behind the last.
        """
        return {
            name: (part[start:end] if name in self.by_row else part).clone()
            for name, part in stored.items()
        }
