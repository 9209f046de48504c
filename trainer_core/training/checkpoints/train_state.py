"""`TrainState`: adapter, optimizer, averages and counts: what checkpoints save and restore."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ...adapters import AttachedAdapter
from ...adapters.max_weight_norm import WeightNormLimit
from ...adapters.parameter_groups import parameter_groups
from ...config import OptimizerSection
from ...diffusion.weighting import LearnedWeight
from ...errors import InputError
from ...types import AdapterState
from ..metrics.loss_ledger import Ledger
from ..optimizers import evaluation_weights, goes_on, load_optimizer_tensors, optimizer_tensors
from .best_loss import BestLoss
from .checkpoint import Checkpoint, stored_section
from .ema import FactorAverages

ADAPTER = "adapter."
"""What the names of the adapter's own tensors begin with in a checkpoint."""

Weights = Literal["average", "last"]
"""The average of the factors, where one is kept, or the factors as they are trained."""

_LEARNED = "learned_weight."
_SKIPPED, _RESTORES = "recovery.skipped", "recovery.returns"


@dataclass(slots=True)
class TrainState:
    """An adapter in training.

    Attributes:
        step: Steps made; schedule and order of the samples follow from it.
        learned_weighting: How much each noise level counts, where that is learned.
        average: Averages of the factors; None where none is kept.
        limit: Scales layers down that have become too strong; None without a limit.
        ledger: What each image was off by; None where nobody asks.
        skipped_in_a_row: How many steps, up to the last one, were skipped because their numbers
            were not finite.
        restores: How often the run has restored a checkpoint because of them.
    """

    adapter: AttachedAdapter
    optimizer: torch.optim.Optimizer
    step: int = 0
    learned_weighting: LearnedWeight | None = None
    average: FactorAverages | None = None
    limit: WeightNormLimit | None = None
    best: BestLoss = field(default_factory=BestLoss)
    ledger: Ledger | None = None
    skipped_in_a_row: int = 0
    restores: int = 0

    def after_update(self) -> None:
        """Do what follows each update of the factors, before anything looks at them."""
        if self.limit is not None:
            self.limit.apply()
        if self.average is not None:
            self.average.update()

    def tensors(self) -> dict[str, Tensor]:
        """All that a run goes on from.

        The exact weights, frozen ones too, their averages, the optimizer's state, and what was
        measured on the way.
        """
        found = {f"{ADAPTER}{name}": each for name, each in self.adapter.named_tensors().items()}
        found |= self.average.tensors() if self.average is not None else {}
        if self.learned_weighting is not None:
            learned = self.learned_weighting.tensors()
            found |= {f"{_LEARNED}{name}": each for name, each in learned.items()}
        weights = {name: each.detach() for name, each in found.items()}
        measured = self.best.tensors() | (self.ledger.tensors() if self.ledger else {})
        counts = {_SKIPPED: self.skipped_in_a_row, _RESTORES: self.restores}
        measured |= {name: torch.tensor(count) for name, count in counts.items() if count}
        return weights | measured | optimizer_tensors(self.optimizer)

    def restore(self, checkpoint: Checkpoint, settings: OptimizerSection) -> str:
        """Put the tensors of a checkpoint back, bit by bit.

        Returns:
            What is to be said: that another optimizer begins anew; empty for nothing.

        Raises:
            InputError: When the checkpoint holds another adapter.
        """
        _fill(self.adapter.named_tensors(), _named(checkpoint, ADAPTER))
        if self.average is not None:
            self.average.restore(checkpoint.tensors, checkpoint.step)
        if self.learned_weighting is not None:
            self.learned_weighting.restore(_named(checkpoint, _LEARNED))
        self.best.restore(checkpoint.tensors, checkpoint.step)
        if self.ledger is not None:
            self.ledger.restore(checkpoint.tensors)
        self.step = checkpoint.step
        self.skipped_in_a_row = int(checkpoint.tensors.get(_SKIPPED, 0))
        self.restores = int(checkpoint.tensors.get(_RESTORES, 0))
        then = stored_section(checkpoint, "training.optimizer", OptimizerSection)
        if not goes_on(then.name, settings.name):
            return f"The state of {then.name} means nothing to {settings.name}, which begins anew."
        groups = parameter_groups(self.adapter, then)
        load_optimizer_tensors(self.optimizer, checkpoint.tensors, groups)
        return ""

    @contextlib.contextmanager
    def use_weights(self, weights: Weights = "average") -> Iterator[None]:
        """Have the average, where one is kept and wanted, in the model instead of the factors.

        Without one, the weights are those that the optimizer evaluates with: a schedule-free
        optimizer averages by itself.
        """
        average = None if self.average is None else self.average.exponential
        if average is None:
            with evaluation_weights(self.optimizer):
                yield
            return
        if weights == "last":
            yield
            return
        factors = dict(self.adapter.named_parameters())
        # In RAM: what a run saves last must not need room on a full device.
        last = {name: each.detach().to("cpu", copy=True) for name, each in factors.items()}
        _fill(factors, average)
        try:
            yield
        finally:
            _fill(factors, last)

    def exported(self, weights: Weights = "average") -> AdapterState:
        """A copy on the CPU of what adapter files are made of."""
        with self.use_weights(weights):
            return self.adapter.state()


def _named(checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(prefix)
    }


@torch.no_grad()
def _fill(tensors: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    wrong = sorted(stored.keys() ^ tensors.keys())
    wrong += [n for n in stored.keys() & tensors.keys() if stored[n].shape != tensors[n].shape]
    if wrong:
        raise InputError(
            f"the checkpoint's adapter differs from this run's at {wrong[0]} "
            f"and {len(wrong) - 1} other tensors",
            "the same layers and shapes",
            "Resume with the run file that the checkpoint was made with (run.yaml beside it).",
        )
    for name, tensor in tensors.items():
        tensor.copy_(stored[name])
