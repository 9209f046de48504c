"""DoRA's magnitude as autograd functions on a layer's input or output; `FactorLayer` calls them.

With W the frozen weight and D the adapter's delta, the layer computes with

    W' = m * (W + D) / |W + D|

where the norm and m run over one axis: ``output`` has one magnitude for each row (each output
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
"""Name of the magnitude in an adapter's state and in files: ``[out, 1]`` or ``[1, in]``."""


def axis_of(magnitude: Tensor) -> Axis:
    """The axis that a magnitude of shape ``[out, 1]`` or ``[1, in]`` runs over."""
    return "input" if magnitude.shape[0] == 1 else "output"


def squared_norms(weight: Tensor, axis: Axis) -> Tensor:
    """Squared norm of each row (``output``) or column (``input``) of ``[out, in]``.

    At least in float32; it is summed in that precision, part by part.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    parts = [part.to(dtype).square() for part in weight.split(256)]
    if axis == "output":
        return torch.cat([part.sum(dim=1) for part in parts])
    return torch.stack([part.sum(dim=0) for part in parts]).sum(dim=0)


def magnitude_ratio(magnitude: Tensor, norm: Tensor) -> Tensor:
    """How much each row or column is stretched: magnitude over norm, and 1 where the norm is 0.

    A row of zeros has no direction; it is left as it is instead of becoming not a number.
    """
    return torch.where(norm == 0, torch.ones_like(norm), magnitude / norm)


class _OutputMagnitude(torch.autograd.Function):
    """``ratio * (y - bias) + bias``, where y is ``x (W + D)^T + bias``.

    The gradient of the magnitude is read off the result, which is kept by others as well, or off y
    where some of it is 0.
    """

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, bias: Tensor | None, magnitude: Tensor, norm: Tensor, zeros: bool
    ) -> Tensor:
        stretch = magnitude_ratio(magnitude, norm)
        result = torch.empty_like(y)
        if bias is None:
            torch.mul(y, stretch, out=result)
        else:
            torch.addcmul(bias * (1.0 - stretch), y, stretch, out=result)
        ctx.zeros = zeros
        ctx.save_for_backward(y if zeros else result, bias, magnitude, norm)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        kept, bias, magnitude, norm = ctx.saved_tensors
        g, stretch = gradients[0], magnitude_ratio(magnitude, norm)
        of_y = torch.mul(g, stretch, out=torch.empty_like(g))
        product = _channel_sums(g * kept, magnitude)
        if bias is not None:
            product -= bias * _channel_sums(g, magnitude)
        divisor = norm if ctx.zeros else magnitude
        fixed = (norm == 0) | (divisor == 0)
        of_magnitude = torch.where(fixed, torch.zeros_like(norm), product / divisor)
        return of_y, None, of_magnitude, None, None


class _InputMagnitude(torch.autograd.Function):
    """``x * ratio``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, magnitude: Tensor, norm: Tensor) -> Tensor:
        ctx.save_for_backward(x, magnitude, norm)
        return torch.mul(x, magnitude_ratio(magnitude, norm), out=torch.empty_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, magnitude, norm = ctx.saved_tensors
        g = gradients[0]
        of_x = torch.mul(g, magnitude_ratio(magnitude, norm), out=torch.empty_like(g))
        product = _channel_sums(g * x, magnitude)
        return of_x, torch.where(norm == 0, torch.zeros_like(norm), product / norm), None


def _channel_sums(values: Tensor, magnitude: Tensor) -> Tensor:
    """Sums over everything but the channels, in the shape and dtype of the magnitude."""
    channels = values.dim() - magnitude.dim()
    others = [axis for axis in range(values.dim()) if axis != channels]
    if not others:
        return values.to(magnitude.dtype)
    return values.sum(dim=others, dtype=magnitude.dtype).view(magnitude.shape)


def stretch_output(
    y: Tensor, bias: Tensor | None, magnitude: Tensor, norm: Tensor, zeros: bool = False
) -> Tensor:
    """Give the rows of the weight behind an output their magnitude.

    Of a convolution, the channels stand before its axes, as in ``[out, 1, 1]``.

    Args:
        y: ``x (W + D)^T + bias`` `[..., out]`.
        bias: `[out]` or None.
        magnitude: The trained magnitude `[out]`.
        norm: ``|W + D|`` of each row `[out]`, without gradient.
        zeros: Whether some of it is 0: y is saved for backward then, because the result says
            nothing of such a row.

    Returns:
        ``x W'^T + bias``.
    """
    return _OutputMagnitude.apply(y, bias, magnitude, norm, zeros)  # type: ignore[no-any-return]


def stretch_input(x: Tensor, magnitude: Tensor, norm: Tensor) -> Tensor:
    """Give the columns of the weight before which an input `[..., in]` stands their magnitude.

    The trained magnitude is `[in]`; the norm, ``|W + D|`` of each column `[in]`, is without
    gradient. Of a convolution, the channels stand before its axes, as in ``[in, 1, 1]``.
    """
    return _InputMagnitude.apply(x, magnitude, norm)  # type: ignore[no-any-return]


def low_rank_norm_terms(
    weight: Tensor, down: Tensor, up: Tensor, axis: Axis
) -> tuple[Tensor, Tensor]:
    """What ``D = up @ down`` adds to the squared norms of a weight, without building D.

    ``<W, D>`` and ``|D|^2`` of each row or column, in the factors' dtype. W is `[out, in]`, `down`
    `[rank, in]`, `up` `[out, rank]`.
    """
    if axis == "input":
        weight, down, up = weight.t(), up.t(), down.t()
    # The product with the weight is rounded as the weight is; it is small beside |W|^2.
    reduced = (weight @ down.t().to(weight.dtype)).to(up.dtype)
    return (reduced * up).sum(dim=1), ((up @ (down @ down.t())) * up).sum(dim=1)
