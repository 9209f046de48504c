"""The gradient accumulator: layers that share an input add up one gradient of it.

An entry (`enter`) stands where the input goes to its layers. Autograd runs the entry's backward
after those of all layers that take part in a pass; until then they gather in a
`GradientAccumulator` what the entry gives on. No function keeps a tensor but by
``save_for_backward``, and the entry keeps none at all, so that a layer keeps the same whether it is
the first one or not, and the same as a layer that shares nothing. Checkpointing relies on that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .adapter_kernel import LowRankPath, Operands, add_below, differentiable_once, direct_apply


class RankSlice:
    """What one layer has of a shared input.

    Attributes:
        accumulator: Where its backward pass adds to.
        shares_path: Whether it has columns in the common low-rank product.
    """

    __slots__ = ("accumulator", "shares_path")

    def __init__(self, accumulator: GradientAccumulator, shares_path: bool) -> None:
        self.accumulator, self.shares_path = accumulator, shares_path


def passes_are_told_apart() -> bool:
    """Whether this torch has the number by which its checkpointing, too, tells backward passes."""
    return hasattr(torch._C, "_current_graph_task_id")


class GradientAccumulator:
    """What the layers on a shared input have added up in one backward pass.

    It holds tensors between the first layer's turn and the entry's only. A pass that does not come
    to the entry, because nobody asked for what comes from there, leaves something behind: the
    next one has another number.

    Args:
        wants_input: Whether the input takes a gradient.

    Attributes:
        path: The same.
        wants_input: The same.
        slices: The layers in the low-rank product, in its order.
    """

    def __init__(self, path: LowRankPath, wants_input: bool) -> None:
        self.path, self.wants_input = path, wants_input
        self.slices: list[RankSlice] = []
        self._pass = -1
        self._clear()

    def _clear(self) -> None:
        self._x_gradient: Tensor | None = None
        self._x: Tensor | None = None
        self._came: dict[RankSlice, tuple[Tensor, Tensor | None, Operands]] = {}

    def begin(self) -> None:
        """Say that a layer's or the entry's turn has come."""
        current = torch._C._current_graph_task_id()
        if current != self._pass:
            self._clear()
            self._pass = current

    def add_input(self, g: Tensor, weight: Tensor) -> Tensor:
        """Add ``g [T, out] @ weight`` to the input's gradient `[T, in]`, and give it."""
        if self._x_gradient is None:
            self._x_gradient = g @ weight
        else:
            self._x_gradient.addmm_(g, weight)
        return self._x_gradient

    def add_path(
        self,
        part: RankSlice,
        x: Tensor,
        of_hidden: Tensor,
        down: Tensor | None,
        operands: Operands,
    ) -> None:
        """Take the gradient of a layer's columns of the low-rank product of x `[T * P, in / P]`.

        `down` is None where the path leaves it.
        """
        self._x = x
        self._came[part] = of_hidden, down, operands

    def finish(self) -> tuple[Tensor | None, list[Tensor | None]]:
        """The gradients of the input `[T, in]` and of the operands below the low-rank product."""
        x_gradient, x, came = self._x_gradient, self._x, self._came
        self._clear()
        path = self.path
        gradients: list[Tensor | None] = []
        if x is None:
            return x_gradient, [None] * (len(path.lower) * len(self.slices))
        taken = list(came.values())
        axis = 1 if path.keeps_hidden else 0
        of_hidden, down, _ = taken[0]
        if len(taken) > 1:
            # Only these are needed as one: three small copies instead of three reads of x.
            of_hidden = torch.cat([each[0] for each in taken], dim=axis)
            downs = [each[1] for each in taken if each[1] is not None]
            down = torch.cat(downs) if downs else None
        turned = of_hidden.t()
        if not path.keeps_hidden:
            of_hidden, turned = turned, of_hidden
        of_down = turned @ x
        of_downs = of_down.split_with_sizes([each[0].shape[axis] for each in taken])
        found = dict(zip(came, of_downs, strict=True))
        for part in self.slices:
            if part in found:
                gradients += path.down_gradients(found[part], came[part][2])
            else:
                gradients += [None] * len(path.lower)
        if x_gradient is not None:
            add_below(x_gradient, of_hidden, of_down if down is None else down)
        return x_gradient, gradients


Forget = Callable[[], Callable[[GradientAccumulator], None] | None]
"""Gives what is to be told of a backward pass that is done or will not come, while that exists."""


class _Entry(torch.autograd.Function):
    """Where an input goes to its layers, and where its gradient comes from.

    Autograd runs it backward after all those layers that take part in a pass. Its first result is
    empty: it only stands in the graph. The other one is the low-rank product.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        accumulator: GradientAccumulator,
        forget: Forget,
        downs: Callable[[], list[Tensor]],
        *lower: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.known = accumulator, forget, x.shape
        # The product has no gradient: autograd would make zeros of its size.
        ctx.set_materialize_grads(False)
        link = x.new_empty(0)
        if not lower:
            return link, None
        down = torch.cat(downs())
        parts = x.reshape(-1, down.shape[1])
        product = parts @ down.t() if accumulator.path.keeps_hidden else down @ parts.t()
        ctx.mark_non_differentiable(product)
        return link, product

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        del gradients
        accumulator, forget, shape = ctx.known
        tell = forget()
        if tell is not None:
            tell(accumulator)
        accumulator.begin()
        x_gradient, of_lower = accumulator.finish()
        if x_gradient is not None:
            x_gradient = x_gradient.view(shape)
        return (x_gradient, None, None, None, *of_lower)


enter: Callable[..., tuple[Tensor, Tensor | None]] = direct_apply(_Entry)  # type: ignore[assignment]
"""Lead an input to its layers.

Args:
    x: `[..., in]`.
    accumulator: Of this input.
    forget: See there.
    downs: Makes ``down`` of each layer in the low-rank product.
    lower: The operands below that product, in the order of the slices.

Returns:
    What the layers' functions hang on, which has no numbers, and the product, turned as
    `LowRankPath.keeps_hidden` says.
"""
