"""Exponential moving average of the weights of a model in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

# More updates than any warm-up of the average takes.
_LONG_AGO = 1_000_000


class WeightAverage:
    """Keeps a slowly moving copy of the trainable weights.

    Attributes:
        values: The averaged weight of each named parameter.
        decay: Share of the old average kept at each update, once warmed up.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {
            name: value.detach().clone()
            for name, value in model.named_parameters()
            if value.requires_grad
        }
        self._updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Moves the average towards the present weights of ``model``."""
        self._updates += 1
        # Forget the random start faster than the decay alone would allow.
        decay = min(self.decay, (1 + self._updates) / (10 + self._updates))
        parameters = dict(model.named_parameters())
        present = [parameters[name].detach() for name in self.values]
        torch._foreach_lerp_(list(self.values.values()), present, 1 - decay)

    def resume(self, values: dict[str, torch.Tensor]) -> None:
        """Continues from saved averages, without forgetting them like a random start."""
        self.values = values
        self._updates = _LONG_AGO

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Overwrites the weights of ``model`` with the average."""
        parameters = dict(model.named_parameters())
        for name, value in self.values.items():
            parameters[name].copy_(value)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Lends the averaged weights to ``model`` for the duration of a block."""
        parameters = dict(model.named_parameters())
        kept = {name: parameters[name].detach().clone() for name in self.values}
        self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in kept.items():
                    parameters[name].copy_(value)
