"""The autograd functions of layers that share an input: they add up one gradient of it.

An entry (`enter`) stands where the input goes to its layers. Autograd runs the entry's backward
after those of all layers (`shared_linear`) that take part in a pass; until then they gather in a
`WayBack` what the entry gives on. No function keeps a tensor but by ``save_for_backward``, and the
entry keeps none at all, so that a layer keeps the same whether it is the first one or not, and the
same as a layer that shares nothing. Checkpointing relies on that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .fused import Branch, Gradients, Narrow, Operands, as_now, as_own, values_of


@dataclass(frozen=True, eq=False)
class Slot:
    """A layer's columns in the common narrow product.

    Attributes:
        narrow: The layer's form through few columns.
        columns: Which of all.
        lower: Positions of the operands that the product takes.
    """

    narrow: Narrow
    columns: slice
    lower: tuple[int, ...]


def passes_are_told_apart() -> bool:
    """Whether this torch has the number by which its checkpointing, too, tells backward passes."""
    return hasattr(torch._C, "_current_graph_task_id")


class WayBack:
    """What the layers of a visit have added up on the way back, in one backward pass.

    It holds tensors between the first layer's turn and the entry's only. A pass that does not come
    to the entry, because nobody asked for what comes from there, leaves something behind: the
    next one has another number.

    Args:
        slots: The layers in the narrow product.
        size: R and the width of ``down [R, in / P]`` of all.
        wants_input: Whether the input takes a gradient.

    Attributes:
        wants_input: The same.
    """

    def __init__(self, slots: Sequence[Slot], size: tuple[int, int], wants_input: bool) -> None:
        self._slots, self._size, self.wants_input = slots, size, wants_input
        self._pass = -1
        self._clear()

    def _clear(self) -> None:
        self._x_gradient: Tensor | None = None
        self._of_hidden: Tensor | None = None
        self._x: Tensor | None = None
        self._came: dict[Slot, Operands] = {}

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

    def place_of(self, slot: Slot, x: Tensor, operands: Operands) -> Tensor:
        """Where a layer has to write the gradient of its narrow product."""
        if self._of_hidden is None:
            parts = x.shape[0] * (x.shape[1] // self._size[1])
            self._x, self._of_hidden = x, x.new_empty(parts, self._size[0])
        self._came[slot] = operands
        return self._of_hidden[:, slot.columns]

    def finish(self) -> tuple[Tensor | None, list[Tensor | None]]:
        """The gradients of the input `[T, in]` and of the operands below the narrow product."""
        x_gradient, of_hidden, x, came = self._x_gradient, self._of_hidden, self._x, self._came
        self._clear()
        if of_hidden is None or x is None:
            return x_gradient, [None for slot in self._slots for _ in slot.lower]
        down = x.new_zeros(self._size)
        for slot in self._slots:
            if slot in came:
                slot.narrow.fill_down(down[slot.columns], came[slot])
            else:
                of_hidden[:, slot.columns].zero_()
        if x_gradient is not None:
            x_gradient.view(-1, self._size[1]).addmm_(of_hidden, down)
        of_down = of_hidden.t() @ x.view(-1, self._size[1])
        gradients: list[Tensor | None] = []
        for slot in self._slots:
            found: Gradients = ()
            if slot in came:
                found = slot.narrow.down_gradients(of_down[slot.columns], came[slot])
            gradients += [found[at] if found else None for at in slot.lower]
        return x_gradient, gradients


Forget = Callable[[], Callable[[WayBack], None] | None]
"""Gives what is to be told of a way back that is done or will not come, while that exists."""


class _Entry(torch.autograd.Function):
    """Where an input goes to its layers, and where its gradient comes from.

    Autograd runs it backward after all those layers that take part in a pass. Its result is empty:
    it only stands in the graph.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, back: WayBack, forget: Forget, *lower: Tensor) -> Tensor:
        del lower
        ctx.back, ctx.forget, ctx.shape = back, forget, x.shape
        return x.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        del gradients
        back: WayBack = ctx.back
        forget = ctx.forget()
        if forget is not None:
            forget(back)
        back.begin()
        x_gradient, of_lower = back.finish()
        if x_gradient is not None:
            x_gradient = x_gradient.view(ctx.shape)
        return (x_gradient, None, None, *of_lower)


@dataclass(frozen=True)
class Part:
    """What a layer's function has to know besides tensors."""

    branch: Branch
    back: WayBack
    slot: Slot | None
    scale: float


class _SharedLinear(torch.autograd.Function):
    """A frozen Linear and its adapter, as `fuse` makes it, on a shared input."""

    @staticmethod
    def forward(
        ctx: Any,
        link: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        hidden: Tensor | None,
        part: Part,
        *operands: Tensor,
    ) -> Tensor:
        del link
        values = values_of(operands)
        y = F.linear(x, weight, bias)
        rows = y.view(-1, y.shape[-1])
        if hidden is not None and part.slot is not None:
            part.slot.narrow.add_up(hidden, rows, values, part.scale)
            kept = (hidden,) if part.slot.narrow.keeps else ()
        else:
            x_rows = x.reshape(-1, x.shape[-1]).contiguous()
            kept = part.branch.add_output(x_rows, rows, values, part.scale)
        ctx.save_for_backward(x, weight, *operands, *kept)
        ctx.part, ctx.count = part, len(operands)
        return as_own(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, *others = ctx.saved_tensors
        part: Part = ctx.part
        back, slot, scale = part.back, part.slot, part.scale
        operands, kept = values_of(others[: ctx.count]), tuple(others[ctx.count :])
        g = gradients[0].reshape(-1, gradients[0].shape[-1]).contiguous()
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        back.begin()
        x_gradient = back.add_input(g, as_now(weight, g)) if back.wants_input else None
        if slot is None:
            found = part.branch.add_gradients(g, rows, x_gradient, operands, kept, scale)
        else:
            of_hidden = back.place_of(slot, rows, operands)
            hidden = kept[0] if kept else slot.narrow.hidden(rows, operands)
            found = slot.narrow.up_gradients(g, hidden, operands, scale, of_hidden)
        # Empty as the link is, but it tells the entry that these gradients have none themselves.
        return (g.new_empty(0), None, None, None, None, None, *found)


def enter(x: Tensor, back: WayBack, forget: Forget, lower: Sequence[Tensor]) -> Tensor:
    """Lead an input to its layers.

    Args:
        x: `[..., in]`.
        back: Of this visit.
        forget: See there.
        lower: The operands of the common narrow product, in the order of the slots.

    Returns:
        What the layers' functions hang on; it has no numbers.
    """
    return cast("Tensor", _Entry.apply(x, back, forget, *lower))


def shared_linear(
    link: Tensor, x: Tensor, linear: nn.Linear, hidden: Tensor | None, part: Part, *operands: Tensor
) -> Tensor:
    """Compute a frozen Linear and its adapter on a shared input.

    Args:
        link: From `enter`.
        x: `[..., in]`, without gradient.
        linear: The base.
        hidden: `[T * P, R]`, the layer's columns of the narrow product; None without a slot.
        part: What else there is to know.
        operands: The layer's; those in the narrow product without gradient.

    Returns:
        `[..., out]`.
    """
    y = _SharedLinear.apply(link, x, linear.weight, linear.bias, hidden, part, *operands)
    return cast("Tensor", y)
