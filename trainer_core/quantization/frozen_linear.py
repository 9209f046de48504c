"""`FrozenLinear`: a Linear that nobody trains, and of which autograd keeps nothing.

Packed weights are unpacked by `quantized_linear`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class FrozenWeight(nn.Module):
    """A frozen layer whose weight is more, or less, than the numbers of ``weight``.

    No dense copy of the weight outlives a forward pass or a backward pass: autograd keeps none.
    """

    @abstractmethod
    def parts(self) -> dict[str, Tensor]:
        """The tensors that hold the weight, as they are now."""

    @abstractmethod
    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight that it computes with, as numbers in its own shape."""

    def added_bias(self, y: Tensor) -> Tensor | None:
        """The bias `[out]` that is in an output y of this layer; None without one."""
        del y
        return cast("Tensor | None", getattr(self, "bias", None))


class FrozenLinear(FrozenWeight, nn.Linear):
    """A frozen Linear whose weight `[out, in]` is more, or less, than the numbers of ``weight``.

    Attributes:
        fetches: Whether it brings its weight by itself to where a product is computed.
    """

    fetches: ClassVar[bool] = False

    @abstractmethod
    def product(self, x: Tensor, *, bias: bool = True) -> Tensor:
        """What `forward` gives, or the same without the bias; no gradient."""

    @abstractmethod
    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the input for one of the output: ``gradient @ W``."""

    def forward(self, input: Tensor) -> Tensor:
        """``input @ W.T + bias``, with W read in the dtype of the input."""
        return cast("Tensor", _FrozenProduct.apply(input, self))


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: FrozenLinear) -> Tensor:
        ctx.layer = layer
        # Nothing of it is needed, but to ask for it makes a checkpointed block run again, which
        # brings weights that have been swapped out meanwhile.
        ctx.save_for_backward(x.new_empty(0))
        return layer.product(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:  # type: ignore[override]
        if not ctx.needs_input_grad[0]:
            return None, None
        (_,) = ctx.saved_tensors
        return ctx.layer.input_gradient(gradient), None
