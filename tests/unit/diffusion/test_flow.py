"""The path between image and noise, and the loss."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from trainer_core.diffusion.flow import interpolate, velocity_target
from trainer_core.diffusion.losses import flow_loss


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


def test_the_loss_is_the_mean_squared_error_of_each_sample():
    prediction, target = torch.randn(2, 3, 4, 6, 8)
    found = flow_loss(prediction, target)
    expected = torch.nn.functional.mse_loss(prediction, target, reduction="none").mean((1, 2, 3))
    assert found.shape == (3,)
    torch.testing.assert_close(found, expected)


def test_the_loss_of_half_precision_is_float32():
    prediction = torch.full((1, 4), 300.0, dtype=torch.float16)
    found = flow_loss(prediction, torch.zeros_like(prediction))
    assert found.dtype == torch.float32
    assert found.item() == 90000.0
