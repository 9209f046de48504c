"""Faults that are put in by hand, so that they are the same on every machine."""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from runs import CancelAfter

from tests.fixtures.tables import table
from trainer_core.adapters.layer.factor_layer import FactorLayer
from trainer_core.training import trainer
from trainer_core.training.observer import RunStarted, StepDone

BROKEN = 5
"""The step of `BREAKS` that breaks first; the steps behind it would, too."""
BREAKS = table(__file__, "a run that breaks")
"""A run whose rate grows by 1e-3 with each step, to be trained while `overflowing`."""
LIMIT = 1e-3 * (BROKEN - 0.5)


@contextmanager
def overflowing() -> Iterator[None]:
    """Let adapters give no numbers while the learning rate is above `LIMIT`.

    So a run diverges: with a lower rate it does not, and the base by itself never does.
    """
    rates = [0.0]
    forward, set_rate = FactorLayer.forward, trainer.set_learning_rate

    def noted(optimizer, rate):
        rates[0] = rate
        set_rate(optimizer, rate)

    def spoilt(self, *given, **named):
        found = forward(self, *given, **named)
        return found * math.nan if rates[0] > LIMIT and self.strength else found

    with (
        mock.patch.object(trainer, "set_learning_rate", noted),
        mock.patch.object(FactorLayer, "forward", spoilt),
    ):
        yield


class BrokenBase(CancelAfter):
    """Spoils the base's layers for some steps, and mends them behind these.

    Args:
        steps: Their numbers; 0 for the first step after the start, or after a resume.
    """

    def __init__(self, *steps: int) -> None:
        super().__init__()
        self.steps, self.before = steps, {}

    def notify(self, event):
        super().notify(event)
        if isinstance(event, RunStarted) and 0 in self.steps:
            self.spoil()
        if isinstance(event, StepDone):
            (self.spoil if self.last + 1 in self.steps else self.mend)()

    def spoil(self) -> None:
        if self.before:
            return
        for layer in [each for each in gc.get_objects() if type(each) is torch.nn.Linear]:
            weight = layer.weight
            if not (weight.requires_grad or weight.is_meta) and weight.dim() == 2:
                self.before[layer] = layer.weight[0, 0].item()
                layer.weight.data[0, 0] = torch.nan

    def mend(self) -> None:
        for layer, number in self.before.items():
            layer.weight.data[0, 0] = number
        self.before = {}
