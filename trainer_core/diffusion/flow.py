"""The straight path from image to noise: interpolation, velocity target, Euler sampling.

The sampler's arithmetic is that of Diffusers' ``FlowMatchEulerDiscreteScheduler``, step by step and
in the same precision: a preview is the image that a Diffusers pipeline samples from the same noise.

Source: Lipman et al., Flow Matching for Generative Modeling (2022); Liu et al., Rectified Flow
(2022).
"""

from __future__ import annotations

from collections.abc import Callable

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


def spread_over_frames(weights: Tensor, latents: Tensor) -> Tensor:
    """Shape weights `[B, 1, h, w]` so that they multiply latents with frames as well."""
    frames = latents.ndim - weights.ndim
    return weights.float().unflatten(1, [1] * (1 + frames))


class SamplingStopped(Exception):  # noqa: N818 - it was asked for
    """A generation was given up because its caller asked for it."""


def sample_euler(
    velocity: Callable[[Tensor, Tensor], Tensor],
    noise: Tensor,
    sigmas: Tensor,
    stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Generate latents from noise.

    Args:
        velocity: Takes latents `[B, C, h, w]` and sigma `[B]`, gives the velocity `[B, C, h, w]`.
        noise: `[B, C, h, w]`, latents at the first sigma: standard normal where that is 1.
        sigmas: `[steps + 1]`, decreasing, as `Family.sampling_sigmas` gives them.
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
        if stop is not None and stop():
            raise SamplingStopped
    return latents
