"""`FrozenConvolution`: a convolution that nobody trains, and of which autograd keeps nothing."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.conv import _ConvNd

from .frozen_linear import FrozenWeight


class FrozenConvolution(FrozenWeight, _ConvNd):
    """A frozen convolution whose weight `[out, in / groups, *kernel]` is read in each pass.

    A class of one's own is this, and `torch.nn.Conv1d`, `Conv2d` or `Conv3d` behind it.
    """

    @abstractmethod
    def product(self, x: Tensor, **options: Any) -> Tensor:
        """What `forward` gives; no gradient."""

    @abstractmethod
    def input_gradient(self, gradient: Tensor, shape: torch.Size, **options: Any) -> Tensor:
        """The gradient of an input of a shape for one of the output."""

    def forward(self, input: Tensor, **options: Any) -> Tensor:
        """The convolution of the input with the weight, read in the dtype of the input."""
        return cast("Tensor", _FrozenConvolution.apply(input, self, options))


class _FrozenConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: FrozenConvolution, options: dict[str, Any]) -> Tensor:
        ctx.known = layer, options, x.shape
        # As in `FrozenLinear`: it makes a checkpointed block run again.
        ctx.save_for_backward(x.new_empty(0))
        return layer.product(x, **options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:  # type: ignore[override]
        if not ctx.needs_input_grad[0]:
            return None, None, None
        (_,) = ctx.saved_tensors
        layer, options, shape = ctx.known
        return layer.input_gradient(gradient, shape, **options), None, None


def convolution_input_gradient(
    layer: _ConvNd, gradient: Tensor, weight: Tensor, shape: torch.Size
) -> Tensor:
    """The gradient of a convolution's input, from the weight alone.

    Args:
        layer: Says how it walks: stride, padding (with its mode), dilation and groups.
        gradient: Of the output, `[B, out, ...]` or `[out, ...]`.
        weight: `[out, in / groups, *kernel]`, in the dtype of the gradient.
        shape: The input's, as many axes as the gradient has.

    Returns:
        `[B, in, ...]` or `[in, ...]`.
    """
    if gradient.dim() == weight.dim() - 1:
        batch = torch.Size((1, *shape))
        return convolution_input_gradient(layer, gradient[None], weight, batch)[0]
    around = tuple(cast("list[int]", layer._reversed_padding_repeated_twice))
    before, after = around[::2], around[1::2]
    if layer.padding_mode == "zeros" and before == after:
        return _unpadded_gradient(layer, gradient, weight, shape=shape, padding=before[::-1])
    # Padding is linear: how its gradient flows does not depend on the values that are padded.
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    with torch.enable_grad():
        blank = gradient.new_zeros(shape, requires_grad=True)
        padded = F.pad(blank, around, mode=mode)
    inner = _unpadded_gradient(
        layer, gradient, weight, shape=padded.shape, padding=(0,) * len(before)
    )
    return torch.autograd.grad(padded, blank, inner)[0]


def _unpadded_gradient(
    layer: _ConvNd, gradient: Tensor, weight: Tensor, shape: torch.Size, padding: tuple[int, ...]
) -> Tensor:
    # The values of the input are of no meaning for its own gradient: one number serves for all.
    blank = gradient.new_empty(1).expand(shape)
    found, _, _ = torch.ops.aten.convolution_backward(
        gradient,
        blank,
        weight,
        None,
        list(layer.stride),
        list(padding),
        list(layer.dilation),
        False,
        [0] * len(padding),
        layer.groups,
        [True, False, False],
    )
    return found
