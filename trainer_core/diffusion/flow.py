"""The straight path between an image and noise.

Source: Lipman et al., Flow Matching for Generative Modeling (2022); Liu et al., Rectified Flow
(2022).
"""

from __future__ import annotations

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
