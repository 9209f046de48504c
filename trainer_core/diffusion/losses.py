"""How far a predicted velocity is from the true one: the losses, one number for each sample.

All are computed in float32 from predictions of any float dtype. None of them averages the samples,
so that a step can be normalised over all of its micro-batches and processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .flow import spread_over_frames

Cost = Callable[[Tensor], Tensor]
"""Errors in float32 to what each of them costs, of the same shape."""

DELTA = 0.1
"""Scale of ``huber`` where nothing else is said."""


@dataclass(frozen=True, slots=True)
class FlowLoss:
    """The loss of a run.

    With e the error of one number of the velocity, each costs

    * ``mse``: e²;
    * ``mae``: |e|;
    * ``huber``: 2 δ (√(e² + δ²) - δ), the smooth form of Huber's loss. Errors far below δ cost e²,
      as with ``mse``; far above it they cost 2 δ |e|.

    A sample's loss is the mean over its numbers.

    Attributes:
        kind: ``mse``, ``mae`` or ``huber``.
        delta: δ of ``huber``, above 0; with ``scheduled`` that at pure noise.
        scheduled: Whether δ depends on the noise level: ``delta ** sigma``, from 1 at the image
            exponentially to ``delta`` at pure noise.
        guidance: Differential guidance s, at least 1: the target is moved away from the prediction
            p, held fixed, to p + s (target - p). It changes the gradient alone; the loss that is
            returned is that of the real target.

    Source: Charbonnier et al., Deterministic edge-preserving regularization (1997), for the smooth
    form; Khrapov et al., Scheduled Pseudo-Huber Loss (2024, arXiv:2403.16728), for its use in
    diffusion and the exponential schedule.
    """

    kind: str = "mse"
    delta: float = DELTA
    scheduled: bool = False
    guidance: float = 1.0

    def __call__(
        self, prediction: Tensor, target: Tensor, sigma: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Measure a batch.

        Args:
            prediction: `[B, C, h, w]` or `[B, C, f, h, w]`, in any float dtype.
            target: Of the same shape.
            sigma: `[B]`, float32, on the same device; read by a scheduled ``huber`` alone.
            weights: `[B, 1, h, w]`, factor on the error at each place, the same for all channels
                and frames; None for 1 everywhere. It is not divided by: `data.masks` does that.

        Returns:
            `[B]` the losses with their graph, and `[B]` the mean squared errors
            without one; both float32.
        """
        errors = _errors(prediction, target)
        cost = self._cost(sigma, errors.ndim)
        if self.kind == "mse" and self.guidance == 1.0:
            losses = _mean(cost, errors, weights)
            return losses, losses.detach()
        fixed = errors.detach()
        plain = _mean(torch.square, fixed, weights)
        if self.guidance == 1.0 or not errors.requires_grad:
            return (plain if self.kind == "mse" else _mean(cost, errors, weights)), plain
        # p - (p' + s (t - p')) with p' = p held fixed.
        guided = _mean(cost, errors + (self.guidance - 1.0) * fixed, weights)
        real = plain if self.kind == "mse" else _mean(cost, fixed, weights)
        return real + (guided - guided.detach()), plain

    def _cost(self, sigma: Tensor, dimensions: int) -> Cost:
        if self.kind == "mse":
            return torch.square
        if self.kind == "mae":
            return torch.abs
        if not self.scheduled:
            return lambda errors: _huber(errors, self.delta)
        delta = (self.delta ** sigma.float()).reshape(-1, *[1] * (dimensions - 1))
        return lambda errors: _huber(errors, delta)


def _huber(errors: Tensor, delta: Tensor | float) -> Tensor:
    # √(e² + δ²) - δ as a quotient: the difference would lose every digit of a small error.
    squares = errors.square()
    return squares * (2.0 * delta) / ((squares + delta**2).sqrt() + delta)


def _errors(prediction: Tensor, target: Tensor) -> Tensor:
    return prediction.float() - target.float()


def _mean(cost: Cost, errors: Tensor, weights: Tensor | None) -> Tensor:
    costs = cost(errors)
    if weights is not None:
        costs = costs * spread_over_frames(weights, costs)
    return costs.flatten(1).mean(1)
