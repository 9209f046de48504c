"""`QuantizedLinear`: a frozen Linear whose weight is kept in fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .stored_format import StoredFormat


class QuantizedLinear(nn.Linear):
    """A frozen Linear that reads its weight from a stored format in each pass.

    No dense copy of the weight outlives a forward pass or a backward pass: autograd keeps none.

    Args:
        stored: How the weight is kept.
        shape: ``(out, in)``.
        parts: What holds it; each becomes a parameter without gradient, under its name.
        bias: `[out]`, or None.
        precision: What its numbers are read in where nobody asks for another format, such as for
            their norm: what the model computes in.
    """

    def __init__(
        self,
        stored: StoredFormat,
        shape: tuple[int, int],
        parts: Mapping[str, Tensor],
        bias: Tensor | None = None,
        precision: torch.dtype = torch.float32,
    ) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = shape
        self.stored = stored
        self.precision = precision
        self.part_names = tuple(parts)
        for name, part in parts.items():
            self.register_parameter(name, nn.Parameter(part, requires_grad=False))
        held = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.register_parameter("bias", held)

    def parts(self) -> dict[str, Tensor]:
        """The tensors that hold the weight, as they are now."""
        return {name: cast("Tensor", self._parameters[name]) for name in self.part_names}

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight as numbers: a new tensor `[out, in]`."""
        shape = self.out_features, self.in_features
        with torch.no_grad():
            return self.stored.dense(self.parts(), shape, dtype or self.precision)

    def forward(self, input: Tensor) -> Tensor:
        """``input @ W.T + bias``, with W read in the dtype of the input."""
        return cast("Tensor", _FrozenProduct.apply(input, self))

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"{super().extra_repr()}, stored={self.stored.name}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        """Move the layer as ``module.to`` does; what is stored keeps its number format."""
        kept = {id(part) for part in self.parts().values()}
        self.precision = fn(torch.empty(0, dtype=self.precision)).dtype

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if id(tensor) in kept and moved.dtype != tensor.dtype:
                return tensor.to(moved.device)
            return moved

        return cast("QuantizedLinear", super()._apply(move, recurse))


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        bias = layer.bias
        return F.linear(x, layer.dense(x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:  # type: ignore[override]
        if not ctx.needs_input_grad[0]:
            return None, None
        return gradient @ ctx.layer.dense(gradient.dtype), None
