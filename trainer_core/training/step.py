"""One micro-batch: draw sigma and noise, predict the velocity, measure the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..counters import counter_seed
from ..diffusion.flow import interpolate, velocity_target
from ..diffusion.loss import flow_loss
from ..errors import NonFiniteError
from ..types import Batch, Conditioning, PreservedBatch
from .memory import seed_generators

Predict = Callable[[Tensor, Tensor, Sequence[Conditioning], Sequence[Tensor]], Tensor]
"""Noisy latents `[B, C, h, w]`, sigma `[B]`, conditionings, controls -> velocity, as latents."""


@dataclass(frozen=True, slots=True)
class MicroStep:
    """What one micro-batch gave.

    Attributes:
        loss: Sum of the samples' mean squared errors, with its graph, float32.
        sigmas: The noise level of each sample.
        names: The samples, for messages.
    """

    loss: Tensor
    sigmas: tuple[float, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepMaker:
    """Computes micro-batches.

    Attributes:
        load: Step (from 1) and micro-batch (from 0) to this process's samples of the dataset.
        load_preserved: The same to the points that hold the base to what it did before.
        predict: The family's velocity on the run's base, with the adapter.
        density: Draws a sigma in [0, 1] for pictures of a latent shape from a generator.
        seed: The run's seed.
        part: ``(index, count)``: this process's part of each micro-batch.
        device: Where the base lives.
    """

    load: Callable[[int, int], Batch | None]
    load_preserved: Callable[[int, int], PreservedBatch | None]
    predict: Predict
    density: Callable[[Batch], Callable[[torch.Generator], float]]
    seed: int
    part: tuple[int, int]
    device: torch.device

    def __call__(self, step: int, micro: int) -> MicroStep:
        """Compute one micro-batch with gradients.

        Args:
            step: Optimizer step, from 1.
            micro: Micro-batch within the step, from 0.

        Returns:
            The loss and what it was measured on.
        """
        batch, preserved = self.load(step, micro), self.load_preserved(step, micro)
        # Dropout inside adapters draws from torch's global generators.
        seed_generators(counter_seed(self.seed, "dropout", step, micro, *self.part), self.device)
        parts = [] if batch is None else [self._learn(batch, step)]
        if preserved is not None:
            parts.append(self._preserve(preserved))
        return MicroStep(
            torch.stack([part.loss for part in parts]).sum(),
            tuple(sigma for part in parts for sigma in part.sigmas),
            tuple(name for part in parts for name in part.names),
        )

    def _learn(self, batch: Batch, step: int) -> MicroStep:
        draw = self.density(batch)
        sigmas = tuple(
            draw(self._generator("sigma", step, position)) for position in batch.positions
        )
        noise = torch.stack(
            [
                torch.randn(batch.latents.shape[1:], generator=self._generator("noise", step, p))
                for p in batch.positions
            ]
        ).to(self.device)
        latents = batch.latents.to(self.device)
        sigma = torch.tensor(sigmas, dtype=torch.float32, device=self.device)
        noisy = interpolate(latents, noise, sigma)
        controls = [control.to(self.device) for control in batch.controls]
        velocity = self.predict(noisy, sigma, batch.conditionings, controls)
        losses = flow_loss(velocity, velocity_target(latents, noise))
        if batch.weights:
            losses = losses * torch.tensor(batch.weights, device=self.device)
        return MicroStep(losses.sum(), sigmas, batch.names)

    def _preserve(self, batch: PreservedBatch) -> MicroStep:
        sigma = torch.tensor(batch.sigmas, dtype=torch.float32, device=self.device)
        controls = [control.to(self.device) for control in batch.controls]
        noisy = batch.noisy.to(self.device)
        velocity = self.predict(noisy, sigma, batch.conditionings, controls)
        losses = flow_loss(velocity, batch.velocity.to(self.device))
        return MicroStep(losses.sum(), batch.sigmas, batch.names)

    def _generator(self, what: str, step: int, position: int) -> torch.Generator:
        # Drawn on the CPU, so that every device trains on the same numbers.
        return torch.Generator().manual_seed(counter_seed(self.seed, what, step, position))


def non_finite_error(
    step: int, what: str, parts: Sequence[MicroStep], remedy: str
) -> NonFiniteError:
    """Say where a run broke.

    Args:
        step: The optimizer step that was not made.
        what: What is not finite, such as "the loss".
        parts: The step's micro-batches.
        remedy: How to go on.

    Returns:
        An error that names step, sigmas and samples.
    """
    samples = ", ".join(
        f"{name} (sigma {sigma:.4f})"
        for part in parts
        for name, sigma in zip(part.names, part.sigmas, strict=True)
    )
    found = f"{what} of step {step} is not finite; samples of this step: {samples}"
    return NonFiniteError(found, "finite numbers", remedy)
