"""The sampler and the path between image and noise, against Diffusers' scheduler."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from trainer_core.diffusion.flow import SamplingStopped, interpolate, sample_euler, velocity_target
from trainer_core.diffusion.sigma import ShiftSettings, flow_sigmas, shift_factor

CASES = {
    "static": ({"shift": 3.0}, ShiftSettings(shift=3.0)),
    "none": ({}, ShiftSettings()),
    "dynamic": (
        {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15},
        ShiftSettings(dynamic=True),
    ),
    "dynamic linear": (
        {"use_dynamic_shifting": True, "time_shift_type": "linear", "max_shift": 2.0},
        ShiftSettings(dynamic=True, max_shift=2.0, exponential=False),
    ),
    "qwen": (
        {
            "use_dynamic_shifting": True,
            "max_shift": 0.9,
            "max_image_seq_len": 8192,
            "shift_terminal": 0.02,
        },
        ShiftSettings(dynamic=True, max_shift=0.9, max_tokens=8192, terminal=0.02),
    ),
    "static terminal": (
        {"shift": 2.0, "shift_terminal": 0.1},
        ShiftSettings(shift=2.0, terminal=0.1),
    ),
}


def scheduled(settings: dict, steps: int, tokens: int) -> FlowMatchEulerDiscreteScheduler:
    scheduler = FlowMatchEulerDiscreteScheduler(**settings)
    config = scheduler.config
    mu = calculate_shift(
        tokens,
        config.base_image_seq_len,
        config.max_image_seq_len,
        config.base_shift,
        config.max_shift,
    )
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    return scheduler


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("steps", "tokens"), [(2, 16), (20, 1024), (50, 4096), (7, 9000)])
def test_sigmas_are_bit_equal_to_the_schedulers(name, steps, tokens):
    theirs, ours = CASES[name]
    expected = scheduled(theirs, steps, tokens).sigmas
    found = flow_sigmas(steps, ours, tokens)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["static", "dynamic", "dynamic linear"])
def test_the_shift_is_the_one_the_scheduler_applies(name):
    theirs, ours = CASES[name]
    shift = shift_factor(ours, 1024)
    sigmas = torch.linspace(1, 0.1, 10)
    expected = scheduled(theirs, 10, 1024).sigmas[:-1]
    torch.testing.assert_close(shift * sigmas / (1 + (shift - 1) * sigmas), expected)


@pytest.mark.parametrize("name", ["static", "qwen"])
def test_drawing_is_bit_equal_to_the_schedulers_steps(name):
    theirs, ours = CASES[name]
    scheduler = scheduled(theirs, 9, 64)
    noise = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))

    def velocity(latents, sigma):
        assert sigma.shape == (2,)
        return torch.sin(3 * latents) * (1 + sigma).view(-1, 1, 1, 1)

    expected = noise
    for timestep, sigma in zip(scheduler.timesteps, scheduler.sigmas, strict=False):
        predicted = velocity(expected, sigma.expand(2))
        expected = scheduler.step(predicted, timestep, expected, return_dict=False)[0]
    assert torch.equal(sample_euler(velocity, noise, flow_sigmas(9, ours, 64)), expected)


def test_a_drawing_that_is_given_up_makes_no_further_step():
    made = []

    def velocity(latents, sigma):
        made.append(sigma)
        return latents

    with pytest.raises(SamplingStopped):
        sample_euler(
            velocity,
            torch.randn(1, 16, 8, 8),
            flow_sigmas(9, ShiftSettings(), 16),
            stop=lambda: len(made) == 3,
        )
    assert len(made) == 3


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
