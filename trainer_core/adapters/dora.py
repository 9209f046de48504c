"""DoRA: a weight's rows or columns keep a direction, and a length of their own is trained.

With W the frozen weight and D the adapter's delta, the layer computes with

    W' = m * (W + D) / |W + D|

where the norm and m run over one axis: ``output`` has one length for each row (each output
feature), ``input`` one for each column. The norm takes no gradient (section 4.3 of the paper).

Source: Liu et al. 2024, arXiv:2402.09353, whose formula is the output axis.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Axis = Literal["input", "output"]
DORA_SCALE = "dora_scale"
"""Name of the lengths in an adapter's state and in files: ``[out, 1]`` or ``[1, in]``."""


def axis_of(lengths: Tensor) -> Axis:
    """The axis that lengths of shape ``[out, 1]`` or ``[1, in]`` run over."""
    return "input" if lengths.shape[0] == 1 else "output"


def squared_lengths(weight: Tensor, axis: Axis) -> Tensor:
    """Squared norm of each row (``output``) or column (``input``) of ``[out, in]``.

    Returns:
        ``[out]`` or ``[in]``, at least in float32; it is summed in that precision, part by part.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    parts = [part.to(dtype).square() for part in weight.split(256)]
    if axis == "output":
        return torch.cat([part.sum(dim=1) for part in parts])
    return torch.stack([part.sum(dim=0) for part in parts]).sum(dim=0)


def ratio(lengths: Tensor, norm: Tensor) -> Tensor:
    """How much each row or column is stretched: length over norm, and 1 where the norm is 0.

    A row of zeros has no direction; it is left as it is instead of becoming not a number.
    """
    return torch.where(norm == 0, torch.ones_like(norm), lengths / norm)


class _OutputLengths(torch.autograd.Function):
    """``ratio * (y - bias) + bias``, where y is ``x (W + D)^T + bias``.

    The gradient of the lengths is read off the result, which is kept by others as well, or off y
    where some length is 0.
    """

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, bias: Tensor | None, lengths: Tensor, norm: Tensor, zeros: bool
    ) -> Tensor:
        stretch = ratio(lengths, norm)
        result = torch.empty_like(y)
        if bias is None:
            torch.mul(y, stretch, out=result)
        else:
            torch.addcmul(bias * (1.0 - stretch), y, stretch, out=result)
        ctx.zeros = zeros
        ctx.save_for_backward(y if zeros else result, bias, lengths, norm)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        kept, bias, lengths, norm = ctx.saved_tensors
        g, stretch = gradients[0], ratio(lengths, norm)
        of_y = torch.mul(g, stretch, out=torch.empty_like(g))
        product = _channel_sums(g * kept, lengths)
        if bias is not None:
            product -= bias * _channel_sums(g, lengths)
        divisor = norm if ctx.zeros else lengths
        fixed = (norm == 0) | (divisor == 0)
        of_lengths = torch.where(fixed, torch.zeros_like(norm), product / divisor)
        return of_y, None, of_lengths, None, None


class _InputLengths(torch.autograd.Function):
    """``x * ratio``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tensor, norm: Tensor) -> Tensor:
        ctx.save_for_backward(x, lengths, norm)
        return torch.mul(x, ratio(lengths, norm), out=torch.empty_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, lengths, norm = ctx.saved_tensors
        g = gradients[0]
        of_x = torch.mul(g, ratio(lengths, norm), out=torch.empty_like(g))
        product = _channel_sums(g * x, lengths)
        return of_x, torch.where(norm == 0, torch.zeros_like(norm), product / norm), None


def _channel_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums over everything but the channels, in the shape and dtype of the lengths."""
    channels = values.dim() - lengths.dim()
    others = [axis for axis in range(values.dim()) if axis != channels]
    if not others:
        return values.to(lengths.dtype)
    return values.sum(dim=others, dtype=lengths.dtype).view(lengths.shape)


def stretch_output(
    y: Tensor, bias: Tensor | None, lengths: Tensor, norm: Tensor, zeros: bool = False
) -> Tensor:
    """Give the rows of the weight behind an output their lengths.

    Of a convolution, the channels stand before its axes, as in ``[out, 1, 1]``.

    Args:
        y: ``x (W + D)^T + bias`` `[..., out]`.
        bias: `[out]` or None.
        lengths: The trained lengths `[out]`.
        norm: ``|W + D|`` of each row `[out]`, without gradient.
        zeros: Whether some length is 0: y is kept for the way back then, because the result says
            nothing of such a row.

    Returns:
        ``x W'^T + bias``.
    """
    return _OutputLengths.apply(y, bias, lengths, norm, zeros)  # type: ignore[no-any-return]


def stretch_input(x: Tensor, lengths: Tensor, norm: Tensor) -> Tensor:
    """Give the columns of the weight before which an input stands their lengths.

    Of a convolution, the channels stand before its axes, as in ``[in, 1, 1]``.

    Args:
        x: `[..., in]`.
        lengths: The trained lengths `[in]`.
        norm: ``|W + D|`` of each column `[in]`, without gradient.
    """
    return _InputLengths.apply(x, lengths, norm)  # type: ignore[no-any-return]


def low_rank_norm_terms(
    weight: Tensor, down: Tensor, up: Tensor, axis: Axis
) -> tuple[Tensor, Tensor]:
    """What ``D = up @ down`` adds to the squared lengths of a weight, without building D.

    Args:
        weight: `[out, in]`.
        down: `[rank, in]`.
        up: `[out, rank]`.
        axis: What the lengths run over.

    Returns:
        ``<W, D>`` and ``|D|^2`` of each row or column, in the factors' dtype.
    """
    if axis == "input":
        weight, down, up = weight.t(), up.t(), down.t()
    # The product with the weight is rounded as the weight is; it is small beside |W|^2.
    reduced = (weight @ down.t().to(weight.dtype)).to(up.dtype)
    return (reduced * up).sum(dim=1), ((up @ (down @ down.t())) * up).sum(dim=1)
