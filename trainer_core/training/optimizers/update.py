"""A step of an optimizer, after which every weight counts as changed."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch.autograd.graph import increment_version


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
