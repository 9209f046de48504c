"""Linears that read one input, seen as one Linear whose outputs are theirs in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ...quantization.frozen_linear import FrozenWeight


class JoinedLinear(nn.Linear):
    """The layer that ComfyUI makes of several, without a weight of its own.

    Args:
        parts: At least two Linears of the same number of inputs, in the order of their rows.

    Attributes:
        parts: The Linears.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        nn.Module.__init__(self)
        self.parts = nn.ModuleList(parts)
        self.in_features = cast("int", parts[0].in_features)
        self.rows = [cast("int", part.out_features) for part in parts]
        self.out_features = sum(self.rows)
        self.training = parts[0].training

    if not TYPE_CHECKING:

        @property
        def weight(self) -> Tensor:
            """A new tensor `[out, in]` of the parts' weights; of packed ones that of the first."""
            weights = [part.weight for part in self.parts]
            if any(isinstance(part, FrozenWeight) for part in self.parts):
                return weights[0]
            return torch.cat([each.detach() for each in weights])

        @property
        def bias(self) -> Tensor | None:
            """A new tensor `[out]`, zero where a part has none; None where no part has one."""
            return _joined_bias(self.parts, self.rows)

    def write(self, weight: Tensor) -> None:
        """Put the rows of a weight `[out, in]` into the parts' own."""
        for part, rows in zip(self.parts, weight.split(self.rows), strict=True):
            cast("Tensor", part.weight).copy_(rows)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Every part's output of `[..., in]`, as `[..., out]`."""
        return torch.cat([part(x, *args, **kwargs) for part in self.parts], dim=-1)


def frozen_parts(layer: nn.Module) -> tuple[nn.Module, ...]:
    """The layers whose weights a layer computes with: itself, or the parts of a joined one."""
    return tuple(layer.parts) if isinstance(layer, JoinedLinear) else (layer,)


def _joined_bias(parts: Sequence[Any], rows: Sequence[int]) -> Tensor | None:
    biases = [part.bias for part in parts]
    first = next((each for each in biases if each is not None), None)
    if first is None:
        return None
    return torch.cat(
        [
            first.new_zeros(count) if bias is None else bias.detach().to(first)
            for bias, count in zip(biases, rows, strict=True)
        ]
    )
