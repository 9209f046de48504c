"""Autograd functions without the Python that torch puts around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
