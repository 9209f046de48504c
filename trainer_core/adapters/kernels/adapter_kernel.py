"""What a kind gives the autograd functions, and how these go without torch's Python around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Factors = Mapping[str, Tensor]
Operands = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class LowRankPath:
    """A contribution that leads from x to y through few columns, ``hidden = x @ down.T``.

    Layers that read the same x make one such product together (`shared_input`). x may be cut into P
    parts of equal width, as lokr does. T is the number of rows of the flattened input. Everything
    here is called without recording gradients.

    Attributes:
        lower: Positions of the trained operands that `down` is made of.
        down: ``(operands, dtype, turned=False)`` to ``down [R, in / P]``, or to its transposed
            where it is wanted `turned`; lokr is not asked for that.
        upper: ``(operands, scale, dtype)`` to what stands above hidden.
        add_up: ``(hidden, y [T, out], upper)``: adds to y in place.
        up_gradients: ``(g [T, out], hidden, upper, operands, scale)`` to the gradient of hidden and
            those of the operands, None for those of `down` and for frozen ones. `upper` is empty
            where it was not saved.
        down_gradients: ``(of_down, operands)``: the gradients of the `lower` operands from that of
            `down`.
        keeps_hidden: Whether hidden is saved for backward; else down and upper are, where these
            are much smaller, and hidden is recomputed. What is kept is ``[T * P, R]``, what is
            recomputed its transposed, because one product mixes the parts of all rows then.
        leaves_down: Whether `down_gradients` writes `down` where its gradient was, so that backward
            need not make it beside that.
        shaped: The operands in the shapes that all others here take, `down` either, or None where
            they have these. It only makes views, which are saved in the operands' place.
    """

    lower: tuple[int, ...]
    down: Callable[..., Tensor]
    upper: Callable[..., Operands]
    add_up: Callable[[Tensor, Tensor, Operands], object]
    up_gradients: Callable[..., tuple[Tensor, list[Tensor | None]]]
    down_gradients: Callable[[Tensor, Operands], Gradients]
    keeps_hidden: bool = True
    leaves_down: bool = False
    shaped: Callable[[Operands], Operands] | None = None


@dataclass(frozen=True, slots=True)
class WholeDelta:
    """A contribution without a low-rank path.

    Attributes:
        add_output: ``(x [T, in], y [T, out], operands, scale)``: adds ``scale * x @ delta.T`` to y
            in place.
        add_gradients: ``(g [T, out], x, x_gradient [T, in] or None, operands, scale)``: adds
            ``scale * g @ delta`` to the input's gradient in place, and returns the operands'
            gradients.
    """

    add_output: Callable[[Tensor, Tensor, Operands, float], object]
    add_gradients: Callable[..., Gradients]


@dataclass(frozen=True, slots=True)
class AdapterKernel:
    """How a kind adds itself to a Linear.

    Attributes:
        operands: Makes of a layer's factors what the others take; autograd sees how.
        path: The low-rank path.
        takes_path: Whether the contribution of these operands goes through it.
        columns: How many columns an augmented weight has beside the frozen one's
            (`AugmentedWeight`); 0 where there is none.
        augment: ``(hidden, operands, scale)`` to ``u [T, columns]`` and ``up [out, columns]``, of
            which ``u @ up.T`` is the contribution.
        whole: What is computed with where the path is not taken.
    """

    operands: Callable[[Factors], Operands]
    path: LowRankPath
    takes_path: Callable[[Operands], bool]
    columns: Callable[[Operands], int]
    augment: Callable[[Tensor, Operands, float], tuple[Tensor, ...]]
    whole: WholeDelta | None = None


def add_below(x_gradient: Tensor, of_hidden: Tensor, down: Tensor) -> None:
    """Add ``of_hidden [T * P, R] @ down [R, in / P]`` to the gradient of x `[T, in]`, in place."""
    if x_gradient.shape[1] != down.shape[1]:
        x_gradient = x_gradient.view(-1, down.shape[1])
    x_gradient.addmm_(of_hidden, down)


def cast_gradients(gradients: Gradients, operands: Operands) -> Gradients:
    """Give gradients the dtype of what they are gradients of."""
    pairs = zip(gradients, operands, strict=True)
    return tuple(None if each is None else each.to(operand.dtype) for each, operand in pairs)


Backward = Callable[..., tuple[Tensor | None, ...]]


def differentiable_once(backward: Backward) -> Backward:
    """Torch's `once_differentiable`, at no cost where nobody records gradients of gradients."""
    guarded = once_differentiable(backward)

    @wraps(backward)
    def run(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (guarded if torch.is_grad_enabled() else backward)(ctx, *gradients)

    return run


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """`Function.apply` without the Python around it, which looks at every argument for functorch.

    Torch refuses such a call itself while a transform of functorch is active. The compiler knows
    `apply` alone.
    """
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, return-value]
