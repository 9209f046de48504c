"""A frozen Linear and its adapter as one autograd function.

The plain form, ``linear(x) + kind.apply(x)``, lets autograd keep every intermediate result and
writes the sums into new tensors. Here a kind adds its contribution straight into the output and,
on the way back, straight into the input's gradient; of the forward pass only the input and what
the kind names is kept. The plain form stays the reference, and serves bases whose weight cannot be
read as a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Factors = Mapping[str, Tensor]
Operands = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]
AddOutput = Callable[[Tensor, Tensor, Operands, float], Operands]
Widened = tuple[Tensor, Tensor, Operands]
Widen = Callable[[Tensor, Operands, float], Widened]
AddGradients = Callable[[Tensor, Tensor, Tensor | None, Operands, Operands, float], Gradients]
FusedApply = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Narrow:
    """A contribution that leads from x to y through few columns, ``hidden = x @ down.T``.

    Layers that read the same x make one such product together (`shared_input`). x may be cut into P
    parts of equal width, as lokr does. What is said of operands is without gradient.

    Attributes:
        lower: Positions of the operands that `down` is made of.
        size: R and ``in / P`` of ``down [R, in / P]``.
        fill_down: ``(down, operands)``: writes it.
        add_up: ``(hidden [T * P, R], y [T, out], operands, scale)``: adds to y in place.
        keeps: Whether hidden is kept for the way back; else it is made again.
        up_gradients: ``(g [T, out], hidden, operands, scale, of_hidden)``: writes the gradient of
            hidden into the last and returns the operands' gradients, None for those of `down`.
        down_gradients: ``(of_down, operands)``: the operands' gradients from that of `down`, None
            for the others.
    """

    lower: Callable[[Operands], tuple[int, ...]]
    size: Callable[[Operands], tuple[int, int]]
    fill_down: Callable[[Tensor, Operands], object]
    add_up: Callable[[Tensor, Tensor, Operands, float], object]
    keeps: bool
    up_gradients: Callable[[Tensor, Tensor, Operands, float, Tensor], Gradients]
    down_gradients: Callable[[Tensor, Operands], Gradients]

    def hidden(self, x: Tensor, operands: Operands) -> Tensor:
        """`[T * P, R]` of ``x [T, in]``."""
        down = self.down(x, operands)
        return x.view(-1, down.shape[1]) @ down.t()

    def down(self, x: Tensor, operands: Operands) -> Tensor:
        """`[R, in / P]` in the precision of x."""
        down = x.new_empty(self.size(operands))
        self.fill_down(down, operands)
        return down

    def gradients(
        self,
        g: Tensor,
        x: Tensor,
        x_gradient: Tensor | None,
        operands: Operands,
        kept: Operands,
        scale: float,
    ) -> Gradients:
        """`Branch.add_gradients` of a layer that shares nothing."""
        hidden = kept[0] if kept else self.hidden(x, operands)
        of_hidden = torch.empty_like(hidden)
        upper = self.up_gradients(g, hidden, operands, scale, of_hidden)
        width = self.size(operands)[1]
        if x_gradient is not None:
            x_gradient.view(-1, width).addmm_(of_hidden, self.down(g, operands))
        lower = self.down_gradients(of_hidden.t() @ x.view(-1, width), operands)
        taken = self.lower(operands)
        return tuple(lower[at] if at in taken else upper[at] for at in range(len(operands)))


def no_narrow(operands: Operands) -> None:
    """`Branch.narrow` of a kind without such a form."""
    del operands


@dataclass(frozen=True, slots=True)
class Branch:
    """How a kind adds itself to a Linear. T is the number of rows of the flattened input.

    Attributes:
        operands: Makes of a layer's factors what the other two take; autograd sees how.
        add_output: ``(x [T, in], y [T, out], operands, scale)``: adds ``scale * x @ delta.T`` to y
            in place, and returns what has to be kept for the way back.
        add_gradients: ``(g [T, out], x, x_gradient [T, in] or None, operands, kept, scale)``: adds
            ``scale * g @ delta`` to the input's gradient in place, and returns the operands'
            gradients in the operands' dtype, None for one that is frozen.
        columns: The small R of `widen`; 0 where there is no such form.
        widen: ``(x, operands, scale)`` to ``u [T, R]``, ``up [out, R]`` and what has to be kept:
            the contribution is ``u @ up.T``.
        narrow: The form through few columns for these operands; None where there is none.
    """

    operands: Callable[[Factors], Operands]
    add_output: AddOutput
    add_gradients: AddGradients
    columns: Callable[[Operands], int]
    widen: Widen
    narrow: Callable[[Operands], Narrow | None] = no_narrow


def fuse(branch: Branch) -> FusedApply:
    """Make the function of a kind.

    Args:
        branch: How the kind adds itself.

    Returns:
        ``(x [..., in], weight [out, in], bias [out] or None, scale, room, *operands)`` to
        ``[..., out]``. Input and weight have the same dtype; operands may have a wider one. The
        weight and the bias get no gradient. With ``room`` (`make_room`) base and adapter are one
        product, which is rounded once; None adds the adapter to the rounded output of the base.
    """

    class FusedLinear(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any,
            x: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            scale: float,
            room: Tensor | None,
            *operands: Tensor,
        ) -> Tensor:
            rows = x.reshape(-1, x.shape[-1]).contiguous()
            values = values_of(operands)
            if room is None:
                # The base's own call, so that its bits are those of the base without an adapter.
                y = F.linear(x, weight, bias)
                kept = branch.add_output(rows, y.view(-1, y.shape[-1]), values, scale)
            else:
                widened = branch.widen(rows, values, scale)
                kept = widened[2]
                y = _one_product(rows, room, bias, widened).view(*x.shape[:-1], room.shape[0])
            ctx.save_for_backward(x, weight, *operands, *kept)
            ctx.scale, ctx.count = scale, len(operands)
            return as_own(y)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
            x, weight, *others = ctx.saved_tensors
            operands, kept = values_of(others[: ctx.count]), tuple(others[ctx.count :])
            g = gradients[0].reshape(-1, gradients[0].shape[-1]).contiguous()
            x_gradient = g @ as_now(weight, g) if ctx.needs_input_grad[0] else None
            rows = x.reshape(-1, x.shape[-1]).contiguous()
            of_operands = branch.add_gradients(g, rows, x_gradient, operands, kept, ctx.scale)
            if x_gradient is not None:
                x_gradient = x_gradient.view(x.shape)
            return (x_gradient, None, None, None, None, *of_operands)

    return FusedLinear.apply


def values_of(operands: Sequence[Tensor]) -> Operands:
    """Operands without their mark of wanting a gradient.

    Also where nothing is recorded, torch.matmul looks at that mark: it then multiplies a small
    matrix and a batch through two copies of the batch, to spare a backward pass one large tensor.
    """
    return tuple(operand.detach() for operand in operands)


def as_now(weight: Tensor, g: Tensor) -> Tensor:
    """A weight where, and in the precision that, a gradient is.

    Its memory is not kept from the forward pass on: it may be away in between, to make room.
    """
    return weight.to(g.device, g.dtype)


def as_own(y: Tensor) -> Tensor:
    """A new result as a tensor that the caller may change in place.

    Of a batch, torch's products are views of a matrix that nobody else has, and autograd forbids
    to change a view that a function of one's own returns.
    """
    return torch.ops.aten._unsafe_view(y, y.shape)


def make_room(weight: Tensor, columns: int) -> Tensor:
    """Copy a weight into a matrix with free columns at its right, for one product of both.

    Args:
        weight: `[out, in]`.
        columns: How many columns the adapter needs.

    Returns:
        `[out, in + columns]`; the free columns are zero.
    """
    room = weight.new_zeros(weight.shape[0], weight.shape[1] + columns)
    room[:, : weight.shape[1]] = weight
    return room


def _one_product(rows: Tensor, room: Tensor, bias: Tensor | None, widened: Widened) -> Tensor:
    """``[x | u] @ [W | up].T + bias``, whose sums are rounded once."""
    narrow, up, _ = widened
    inputs = rows.shape[1]
    # What is saved for the way back is the weight's own columns, which stay as they are; `data`
    # keeps autograd from taking the new values of the free columns for a change of those.
    room.data[:, inputs:] = up
    wide = torch.cat([rows, narrow], dim=1)
    return F.linear(wide, room, bias)


def like(gradients: Gradients, operands: Operands) -> Gradients:
    """Give gradients the dtype of what they are gradients of."""
    pairs = zip(gradients, operands, strict=True)
    return tuple(None if each is None else each.to(operand.dtype) for each, operand in pairs)
