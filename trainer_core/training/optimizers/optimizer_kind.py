"""`OptimizerKind`: its state, its step, and the weights that it is evaluated with."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version

from ...config import OptimizerSection

Groups = Sequence[dict[str, Any]]
"""Torch's groups of parameters: ``params``, ``lr``, ``rate``, ``weight_decay``, and
``magnitudes``: whether they are DoRA's."""

StateBytes = Callable[[Sequence[int]], float]
"""The shape of a factor to the bytes of its state on the device."""

LARGE = 100_000
"""From so many numbers on bitsandbytes keeps the state of a factor in pages."""

PACKED = 4096
"""From so many numbers on a state is kept in fewer bits."""


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """An optimizer, as the run file names it.

    Attributes:
        build: Settings and groups to a torch optimizer over them, in the same order.
        state_bytes: What it keeps for a factor whatever its settings are; see `kept_bytes`.
        beta1_moment: Whether it keeps a mean gradient, in fp32, only where ``beta1`` is not 0.
        package: What has to be importable besides torch; empty for nothing.
        pace: How far it goes at a learning rate, over AdamW; None where the rate tells nothing.
        pretended: Whether its update runs on tensors that have sizes alone.
    """

    build: Callable[[OptimizerSection, Groups], torch.optim.Optimizer]
    state_bytes: StateBytes
    package: str = ""
    pace: float | None = 1.0
    pretended: bool = False
    beta1_moment: bool = False

    def kept_bytes(self, shape: Sequence[int], settings: OptimizerSection) -> float:
        """What it keeps for a factor of a shape, in bytes on the device."""
        moment = 4.0 * math.prod(shape) if self.beta1_moment and settings.beta1 else 0.0
        return self.state_bytes(shape) + moment


def update(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Make an optimizer's step.

    Torch's fused steps, and those of some libraries, write where autograd does not see it: the
    norm that DoRA keeps would be taken for the present one of a layer that the passes of a step
    left out, while momentum or another process moved it.

    Args:
        optimizer: Of these parameters, whose gradients are in place.
    """
    optimizer.step()
    if _counts_many():
        increment_version(parameters)
    else:
        for parameter in parameters:
            increment_version(parameter)


@functools.cache
def _counts_many() -> bool:
    """Whether this torch takes many tensors in one call; 2.4 took one."""
    try:
        increment_version(())
    except (TypeError, RuntimeError):
        return False
    return True


@contextlib.contextmanager
def evaluation_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Have the weights in the model that previews, losses and files are to be made of.

    Schedule-free optimizers train at one point and average another. Going there and back again by
    arithmetic would round; so the trained weights are kept, and the very same bits put back.

    Args:
        optimizer: Any; most are judged by what they train.
    """
    own: Any = optimizer
    if not hasattr(own, "eval") or not all(group["train_mode"] for group in own.param_groups):
        yield  # nothing to change, or changed already
        return
    parameters = [each for group in own.param_groups for each in group["params"]]
    # In RAM: what a run saves last must not need room on a full device.
    trained = [each.detach().to("cpu", copy=True) for each in parameters]
    own.eval()
    try:
        yield
    finally:
        own.train()
        with torch.no_grad():
            for each, kept in zip(parameters, trained, strict=True):
                each.copy_(kept)
