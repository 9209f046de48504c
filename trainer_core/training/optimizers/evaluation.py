"""The weights that an optimizer wants to be judged by, where those are not the ones it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def evaluated(optimizer: torch.optim.Optimizer) -> Iterator[None]:
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
