"""`TrainState`: what the steps of a run change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..adapters import AttachedAdapter
from ..adapters.parameter_groups import ParameterGroup, parameter_groups
from ..config import OptimizerSection
from ..errors import InputError
from ..types import AdapterState
from .checkpoint import Checkpoint
from .optimizer import (
    load_optimizer_tensors,
    optimizer_tensors,
)

_ADAPTER, _AVERAGE = "adapter.", "average."
_SKIPPED, _RETURNS = "recovery.skipped", "recovery.returns"


@dataclass(slots=True)
class TrainState:
    """An adapter in training.

    Attributes:
        adapter: On the run's base.
        optimizer: Over its parameters.
        step: Steps made; schedule and order of the samples follow from it.
        epoch: How many times the dataset was gone through.
        samples: How many were trained.
        average: Averaged factors by name, of which previews and files are made instead of the last
            ones; None where no average is kept.
        skipped: How many steps in a row, up to the last one, were left out, because their numbers
            were not finite.
        returns: How often the run has gone back to a checkpoint because of them.
    """

    adapter: AttachedAdapter
    optimizer: torch.optim.Optimizer
    step: int = 0
    epoch: float = 0.0
    samples: int = 0
    average: Mapping[str, Tensor] | None = None
    skipped: int = 0
    returns: int = 0

    def advance(self, step: int, epoch: float, samples: int) -> None:
        """Count a step that was made."""
        self.step, self.epoch = step, epoch
        self.samples += samples

    def tensors(self) -> dict[str, Tensor]:
        """The exact weights, frozen ones too, their average and the optimizer's state."""
        found = {f"{_ADAPTER}{name}": each for name, each in self.adapter.named_tensors().items()}
        found |= {f"{_AVERAGE}{name}": each for name, each in (self.average or {}).items()}
        weights = {name: each.detach() for name, each in found.items()}
        counts = {_SKIPPED: self.skipped, _RETURNS: self.returns}
        kept = {name: torch.tensor(count) for name, count in counts.items() if count}
        return weights | kept | optimizer_tensors(self.optimizer)

    def restore(self, checkpoint: Checkpoint, settings: OptimizerSection) -> None:
        """Put the tensors of a checkpoint back, bit by bit.

        Args:
            checkpoint: What `read_checkpoint` gave.
            settings: How the adapter is optimized now.

        Raises:
            InputError: When the checkpoint holds another adapter.
        """
        _fill(self.adapter.named_tensors(), _named(checkpoint, _ADAPTER))
        if self.average is not None:
            _fill(self.average, _named(checkpoint, _AVERAGE))
        groups = _stored_groups(checkpoint, self.adapter, settings)
        load_optimizer_tensors(self.optimizer, checkpoint.tensors, groups)
        self.step = checkpoint.step
        self.skipped = int(checkpoint.tensors.get(_SKIPPED, 0))
        self.returns = int(checkpoint.tensors.get(_RETURNS, 0))

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Have the average, where one is kept, in the model instead of the last factors."""
        if self.average is None:
            yield
            return
        factors = dict(self.adapter.named_parameters())
        # In RAM: what a run saves last must not need room on a full device.
        last = {name: each.detach().to("cpu", copy=True) for name, each in factors.items()}
        _fill(factors, self.average)
        try:
            yield
        finally:
            _fill(factors, last)

    def exported(self) -> AdapterState:
        """A copy on the CPU of what adapter files are made of."""
        with self.shown():
            return self.adapter.state()


def _stored_groups(
    checkpoint: Checkpoint, adapter: AttachedAdapter, settings: OptimizerSection
) -> list[ParameterGroup]:
    """The groups of parameters that a checkpoint's optimizer had, which order its state.

    Learning rates by layer may have been others then.
    """
    prefix = "training.optimizer."
    known = {
        name: checkpoint.settings[f"{prefix}{name}"]
        for name in OptimizerSection.model_fields
        if f"{prefix}{name}" in checkpoint.settings
    }
    return parameter_groups(adapter, settings.model_copy(update=known))


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
