"""The training loss."""

from __future__ import annotations

from torch import Tensor


def flow_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of each sample, computed in float32.

    Args:
        prediction: `[B, ...]`, the predicted velocity in any float dtype.
        target: `[B, ...]`, the true velocity.

    Returns:
        `[B]`, float32. The samples are not averaged, so that a step can be normalised over all of
        its micro-batches and processes.
    """
    return (prediction.float() - target.float()).square().flatten(1).mean(1)
