"""Lion: the sign of a mean gradient, with one number of state for each that is trained."""

# Torch does not list the functions that update many tensors at once.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .adamw8bit import portions
from .optimizer_kind import Groups


class Lion(torch.optim.Optimizer):
    """Lion.

    With gradient g, mean m and weight w: ``u = sign(beta1 m + (1 - beta1) g)``,
    ``w = w - lr (u + weight_decay w)``, ``m = beta2 m + (1 - beta2) g``.

    Args:
        groups: With ``lr`` and ``weight_decay``.
        betas: Weight of the mean in the update, and decay of the mean.

    Source: Chen et al. 2023 (Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675),
    algorithm 2.
    """

    def __init__(self, groups: Groups, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            moved = [each for each in group["params"] if each.grad is not None]
            for few in portions(moved) if moved else ():
                self._update(few, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [each.grad for each in parameters if each.grad is not None]
        for each in parameters:
            if not self.state[each]:
                self.state[each]["exp_avg"] = torch.zeros_like(each)
        means = [self.state[each]["exp_avg"] for each in parameters]
        (beta1, beta2), rate = group["betas"], group["lr"]
        updates = torch._foreach_lerp(means, gradients, 1 - beta1)
        torch._foreach_sign_(updates)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch._foreach_add_(parameters, updates, alpha=-rate)
        torch._foreach_lerp_(means, gradients, 1 - beta2)
