"""The straight path between an image and noise: what is trained, and the preview's way back.

The sampler's arithmetic is that of Diffusers' ``FlowMatchEulerDiscreteScheduler``, step by step and
in the same precision: a preview is the image that a Diffusers pipeline samples from the same noise.

Source: Lipman et al., Flow Matching for Generative Modeling (2022); Liu et al., Rectified Flow
(2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def interpolate(latents: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """Mix an image with noise: ``(1 - sigma) latents + sigma noise``.

    Args:
        latents: `[B, ...]`, the images x_0.
        noise: `[B, ...]`, standard normal, of the same shape.
        sigma: `[B]`, the share of noise of each sample, in [0, 1].

    Returns:
        `[B, ...]`, the noisy latents in the dtype of ``latents``.
    """
    share = sigma.to(latents).reshape(-1, *[1] * (latents.ndim - 1))
    mixed = (1 - share) * latents
    return mixed.add_(share * noise)


def velocity_target(latents: Tensor, noise: Tensor) -> Tensor:
    """What a denoiser has to predict at every sigma: ``noise - latents``.

    Args:
        latents: `[B, ...]`, the images x_0.
        noise: `[B, ...]`, the noise they were mixed with.

    Returns:
        `[B, ...]`, the derivative of `interpolate` with respect to sigma.
    """
    return noise - latents


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


class SamplingStopped(Exception):  # noqa: N818 - it was asked for
    """A generation was given up because its caller asked for it."""


@dataclass(frozen=True, slots=True)
class ShiftSettings:
    """How a base's scheduler moves its noise levels.

    Attributes:
        dynamic: Whether the shift follows the image's size.
        shift: The fixed shift, used when not ``dynamic``.
        base_shift: Dynamic: mu at ``base_tokens``.
        max_shift: Dynamic: mu at ``max_tokens``.
        base_tokens: Number of image tokens of the smallest image.
        max_tokens: Number of image tokens of the largest image.
        exponential: Dynamic: whether the shift is ``exp(mu)`` (else ``mu``).
        terminal: The last sigma above 0 of every schedule, or None to leave it where it falls.
    """

    dynamic: bool = False
    shift: float = 1.0
    base_shift: float = 0.5
    max_shift: float = 1.15
    base_tokens: int = 256
    max_tokens: int = 4096
    exponential: bool = True
    terminal: float | None = None


def sigma_shift(settings: ShiftSettings, tokens: int) -> float:
    """The factor of `shift_sigma` that a base's scheduler uses, above 0; 1 moves no sigma.

    Args:
        settings: The base's scheduler.
        tokens: Number of image tokens of the image that is generated, controls not counted.
    """
    if not settings.dynamic:
        return settings.shift
    slope = (settings.max_shift - settings.base_shift) / (
        settings.max_tokens - settings.base_tokens
    )
    mu = tokens * slope + (settings.base_shift - slope * settings.base_tokens)
    return math.exp(mu) if settings.exponential else mu


def flow_sigmas(steps: int, settings: ShiftSettings, tokens: int) -> Tensor:
    """The noise levels of a generation, from 1 down to 0.

    Args:
        steps: Number of steps, at least 1.
        settings: The base's scheduler.
        tokens: Number of image tokens of the image.

    Returns:
        `[steps + 1]`, float32, decreasing; the last one is 0.

    Source: Diffusers, ``FlowMatchEulerDiscreteScheduler.set_timesteps``.
    """
    # Spaced in float64 and rounded once, as numpy's linspace does it there.
    stride = (1.0 / steps - 1.0) / max(steps - 1, 1)
    spaced = [1.0 + index * stride for index in range(steps - 1)] + [1.0 / steps]
    sigmas = torch.tensor(spaced, dtype=torch.float64).to(torch.float32)
    shift = sigma_shift(settings, tokens)
    if settings.dynamic:
        # A true division: torch turns number / tensor into number * (1 / tensor), rounded twice.
        sigmas = torch.full_like(sigmas, shift) / (shift + (1 / sigmas - 1))
    else:
        sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
    if settings.terminal and sigmas[-1] < 1:
        distance = 1 - sigmas
        sigmas = 1 - distance / (distance[-1] / (1 - settings.terminal))
    return torch.cat([sigmas, sigmas.new_zeros(1)])


def sample_euler(
    velocity: Callable[[Tensor, Tensor], Tensor],
    noise: Tensor,
    sigmas: Tensor,
    on_step: Callable[[int, Tensor], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Generate latents from noise.

    Args:
        velocity: Takes latents `[B, C, h, w]` and sigma `[B]`, gives the velocity `[B, C, h, w]`.
        noise: `[B, C, h, w]`, standard normal.
        sigmas: `[steps + 1]`, decreasing, as `flow_sigmas` makes them.
        on_step: Called after each step with its index (from 0) and the latents.
        stop: Asked after each step whether to give up.

    Returns:
        `[B, C, h, w]`, latents at the last sigma, in the dtype of ``noise``.

    Raises:
        SamplingStopped: When ``stop`` said so.
    """
    latents = noise
    sigmas = sigmas.to(noise.device)
    for index in range(len(sigmas) - 1):
        sigma, following = sigmas[index], sigmas[index + 1]
        predicted = velocity(latents, sigma.expand(latents.shape[0]))
        # The sum is taken in float32, as half precision loses small steps.
        latents = (latents.float() + (following - sigma) * predicted).to(noise.dtype)
        if on_step is not None:
            on_step(index, latents)
        if stop is not None and stop():
            raise SamplingStopped
    return latents
