"""The path between image and noise, and the loss."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from trainer_core.diffusion.flow import interpolate, velocity_target


def test_the_ends_of_the_path_are_the_image_and_the_noise():
    image, noise = torch.randn(2, 2, 4, 6, 8)
    assert torch.equal(interpolate(image, noise, torch.tensor([0.0, 1.0]))[0], image[0])
    assert torch.equal(interpolate(image, noise, torch.tensor([0.0, 1.0]))[1], noise[1])


def test_noising_is_the_schedulers():
    image, noise = torch.randn(2, 3, 4, 6, 8)
    scheduler = FlowMatchEulerDiscreteScheduler()
    timesteps = scheduler.timesteps[[10, 500, 990]]
    expected = scheduler.scale_noise(image, timesteps, noise)
    found = interpolate(image, noise, timesteps / 1000)
    torch.testing.assert_close(found, expected)


def test_the_target_is_the_derivative_along_the_path():
    image, noise = torch.randn(2, 2, 4, 6, 8, dtype=torch.float64)
    sigma = torch.tensor([0.3, 0.8], dtype=torch.float64)
    small = 1e-6
    slope = (
        interpolate(image, noise, sigma + small) - interpolate(image, noise, sigma - small)
    ) / (2 * small)
    torch.testing.assert_close(slope, velocity_target(image, noise), rtol=1e-6, atol=1e-8)
