"""A frozen quantised Linear and its adapter as one autograd function.

The layer's own forward is called, so that its bits are those of the base without an adapter, and
the adapter's contribution is added in place. On the way back the weight is read as numbers once
more: some libraries' own way back keeps the whole weight from the forward pass on, as large as if
it had never been quantised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...errors import AdapterError
from ..base.weight import dense_weight
from .fused import Branch, as_own

QuantisedApply = Callable[..., Tensor]


def _present_weight(layer: nn.Module, g: Tensor) -> Tensor:
    """The layer's numbers where, and in the precision that, a gradient is."""
    dense = dense_weight(layer, g.dtype)
    if dense.is_meta and not g.is_meta:
        raise AdapterError(
            f"a {type(layer).__name__} of {tuple(dense.shape)} whose weight has no values (meta "
            "device) in the backward pass",
            "the base's weights in memory in the backward pass as in the forward pass",
            "Bring them back before the backward pass.",
        )
    return dense.to(g)


def fuse_quantised(branch: Branch) -> QuantisedApply:
    """Make the function of a kind.

    Args:
        branch: How the kind adds itself.

    Returns:
        ``(x [..., in], layer, scale, *operands)`` to ``[..., out]``, for a layer of which
        `quantised.is_read_back` holds. Operands may have a wider dtype than x. The weight and the
        bias get no gradient.
    """

    class FusedQuantised(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, layer: nn.Module, scale: float, *operands: Tensor
        ) -> Tensor:
            rows = x.reshape(-1, x.shape[-1]).contiguous()
            values = tuple(operand.detach() for operand in operands)
            y = layer(x).contiguous()
            kept = branch.add_output(rows, y.view(-1, y.shape[-1]), values, scale)
            ctx.save_for_backward(x, *operands, *kept)
            ctx.layer, ctx.scale, ctx.count = layer, scale, len(operands)
            return as_own(y)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
            x, *others = ctx.saved_tensors
            operands = tuple(operand.detach() for operand in others[: ctx.count])
            kept = tuple(others[ctx.count :])
            g = gradients[0].reshape(-1, gradients[0].shape[-1]).contiguous()
            rows = x.reshape(-1, x.shape[-1]).contiguous()
            x_gradient = None
            if ctx.needs_input_grad[0]:
                x_gradient = g @ _present_weight(ctx.layer, g)
            of_operands = branch.add_gradients(g, rows, x_gradient, operands, kept, ctx.scale)
            if x_gradient is not None:
                x_gradient = x_gradient.view(x.shape)
            return (x_gradient, None, None, *of_operands)

    return FusedQuantised.apply
