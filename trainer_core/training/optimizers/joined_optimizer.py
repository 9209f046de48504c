"""Several optimizers over one adapter, each for the factors that suit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .optimizer_kind import Groups

Sort = Callable[[Tensor, Mapping[str, Any]], bool]
Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

OWN = frozenset({"params", "rate", "magnitudes"})
"""Entries of a group that are not settings of a library's optimizer."""


class JoinedOptimizer(torch.optim.Optimizer):
    """One optimizer for what is chosen, another for the rest.

    To the outside there is one list of groups and one state. Those of the parts share the state
    and follow the groups' learning rates.

    Args:
        groups: In the adapter's order.
        is_chosen: A parameter and its group to whether the first optimizer takes it.

    Attributes:
        parts: The optimizers that have parameters.
    """

    def __init__(self, groups: Groups, is_chosen: Sort, chosen: Make, rest: Make) -> None:
        super().__init__(groups, {})
        self.parts: list[torch.optim.Optimizer] = []
        self._followers: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for make, wanted in ((chosen, True), (rest, False)):
            self._add(make, [self._share(each, is_chosen, wanted) for each in self.param_groups])

    @staticmethod
    def _share(group: dict[str, Any], is_chosen: Sort, wanted: bool) -> dict[str, Any]:
        taken = [each for each in group["params"] if is_chosen(each, group) == wanted]
        settings = {name: value for name, value in group.items() if name not in OWN}
        return {**settings, "params": taken}

    def _add(self, make: Make, shares: list[dict[str, Any]]) -> None:
        filled = [(g, s) for g, s in zip(self.param_groups, shares, strict=True) if s["params"]]
        if not filled:
            return
        part = make([share for _, share in filled])
        part.state = self.state
        self.parts.append(part)
        outer = [group for group, _ in filled]
        self._followers += zip(outer, part.param_groups, strict=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        del closure
        for group, follower in self._followers:
            set_rate(follower, group["lr"])
        for part in self.parts:
            part.step()


def set_rate(group: dict[str, Any], learning_rate: float) -> None:
    """Give a group a learning rate; torchao keeps it in a tensor."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(learning_rate)
    else:
        group["lr"] = float(learning_rate)
