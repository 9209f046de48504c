"""`StoredFormat`: how a frozen matrix is kept in fewer bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]
"""The tensors that hold a weight: ``weight``, and beside it what scales it."""


def slices_of_blocks(blocks: Tensor, on_cpu: int) -> Iterator[slice]:
    """Cut blocks `[n, size]` into parts that are worked on together.

    Args:
        on_cpu: Numbers that stay in a CPU's cache; on a GPU they are 2^23, with 24 to 48 MiB in
            between.
    """
    step = (on_cpu if blocks.is_cpu else 1 << 23) // blocks.shape[1]
    return (slice(start, start + step) for start in range(0, len(blocks), step))


class StoredFormat(ABC):
    """How a frozen matrix is kept in fewer bits. It holds no tensor.

    Attributes:
        name: What ``memory.base_format`` and tables call it.
        eight_bit: Whether the parts can be multiplied as they are (`eight_bit_products`):
            ``W = weight_scale * weight``, with a scale for each row, for all, or without one.
        rotates: Whether that W has rotated rows (`rotation`).
        planned: Whether a memory plan may choose it; else only the run file does.
    """

    name: ClassVar[str]
    eight_bit: ClassVar[bool] = False
    rotates: ClassVar[bool] = False
    planned: ClassVar[bool] = True

    @abstractmethod
    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """Make the parts of a weight.

        Args:
            weight: `[out, in]`, of any floating-point dtype, on any device.

        Returns:
            New tensors on the same device; ``weight`` is the largest of them.
        """

    @abstractmethod
    def dense(self, parts: Parts, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Read a weight back as numbers.

        Args:
            parts: As `pack` makes them, or as a file has them.
            shape: ``(out, in)``.
            dtype: Of the result: float16, bfloat16, float32 or float64.

        Returns:
            A new tensor `[out, in]` where the parts are; nothing keeps it.
        """

    @abstractmethod
    def stored_bytes(self, shape: tuple[int, int]) -> int:
        """Bytes of all parts of a weight of a shape, to the byte."""

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether a weight of a shape can be kept so."""
        del shape
        return True
