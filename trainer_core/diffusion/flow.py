"""The straight path between a picture and noise.

Source: Lipman et al., Flow Matching for Generative Modeling (2022); Liu et al., Rectified Flow
(2022).
"""

from __future__ import annotations

from torch import Tensor


def interpolate(latents: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """Mix a picture with noise: ``(1 - sigma) latents + sigma noise``.

    Args:
        latents: `[B, ...]`, the pictures x_0.
        noise: `[B, ...]`, standard normal, of the same shape.
        sigma: `[B]`, the share of noise of each sample, in [0, 1].

    Returns:
        `[B, ...]`, the noisy latents in the dtype of ``latents``.
    """
    share = sigma.to(latents).reshape(-1, *[1] * (latents.ndim - 1))
    return (1 - share) * latents + share * noise


def velocity_target(latents: Tensor, noise: Tensor) -> Tensor:
    """What a denoiser has to predict at every sigma: ``noise - latents``.

    Args:
        latents: `[B, ...]`, the pictures x_0.
        noise: `[B, ...]`, the noise they were mixed with.

    Returns:
        `[B, ...]`, the derivative of `interpolate` with respect to sigma.
    """
    return noise - latents
