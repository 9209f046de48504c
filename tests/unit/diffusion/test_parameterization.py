"""What a raw output stands for, against Diffusers' scheduler and k-diffusion's formulas."""

import itertools
import math

import pytest
import torch
from diffusers import DDPMScheduler

from trainer_core.diffusion.flow import sample_euler
from trainer_core.diffusion.parameterization import EPS, FLOW, edm, flow, v_prediction

SCHEDULER = DDPMScheduler(1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
ALL = {
    "flow": FLOW,
    "flow, small noise": flow(0.5),
    "eps": EPS,
    "v": v_prediction(),
    "v, other data": v_prediction(0.5),
    "edm": edm(0.5),
    "edm, one": edm(1.0),
}
KS = (0.002, 0.0292, 0.5, 1.0, 14.6146, 120.0, 4518.76)
"""From EDM's weakest level to that of a schedule whose signal ends at almost nothing."""


def pair(dtype=torch.float64):
    """Images and noise, one for each of `KS`."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, len(KS), 4, 6, 6)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).unbind()


def shares(ks=KS, dtype=torch.float64):
    k = torch.tensor(ks, dtype=torch.float64)
    return (k / (1 + k)).to(dtype)


def wide(numbers):
    return numbers.reshape(-1, 1, 1, 1)


def denoised(name, k, output, noisy):
    """k-diffusion's: what a model's output and its noisy latents say of the image."""
    data = {"v, other data": 0.5, "edm": 0.5}.get(name, 1.0)
    if name == "eps":
        return noisy - k * output
    sign = 1 if name.startswith("edm") else -1
    kept = data**2 / (k**2 + data**2)
    return kept * noisy + sign * k * data / (k**2 + data**2).sqrt() * output


@pytest.mark.parametrize("name", [each for each in ALL if not each.startswith("flow")])
def test_the_target_as_output_gives_the_image(name):
    image, noise = pair()
    k, sigma = wide(torch.tensor(KS, dtype=torch.float64)), shares()
    noisy = ALL[name].noised(image, noise, sigma) / wide(1 - sigma)
    torch.testing.assert_close(noisy, image + k * noise, rtol=1e-9, atol=1e-12)
    found = denoised(name, k, ALL[name].target(image, noise, sigma), noisy)
    # Taken apart again, noise of size k leaves its rounding: 4518 twice, for eps.
    torch.testing.assert_close(found, image, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "kind"), [("eps", "epsilon"), ("v", "v_prediction")])
def test_latents_and_target_are_those_of_a_variance_preserving_model(name, kind):
    image, noise = (each.repeat(3, 1, 1, 1)[:20] for each in pair())
    steps = torch.linspace(0, 999, 20).long()
    kept = SCHEDULER.alphas_cumprod[steps].double()
    k = ((1 - kept) / kept).sqrt()
    sigma = k / (1 + k)
    length = wide(torch.hypot(1 - sigma, sigma))
    noisy = ALL[name].noised(image, noise, sigma) / length
    theirs = SCHEDULER.add_noise(image, noise, steps)
    torch.testing.assert_close(noisy, theirs, rtol=1e-6, atol=1e-7)
    wanted = noise if kind == "epsilon" else SCHEDULER.get_velocity(image, noise, steps)
    found = ALL[name].target(image, noise, sigma)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_the_target_as_output_gives_the_velocity_of_the_straight_path(name):
    image, noise = pair()
    sigma, each = shares(), ALL[name]
    size = 0.5 if name == "flow, small noise" else 1.0
    noisy, target = each.noised(image, noise, sigma), each.target(image, noise, sigma)
    found = each.velocity(target, noisy, sigma)
    torch.testing.assert_close(found, size * noise - image, rtol=0, atol=1e-10)
    small = 1e-7
    slope = (each.noised(image, noise, sigma + small) - noisy) / small
    torch.testing.assert_close(slope, found, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coefficients_keep_their_digits_at_both_ends(name, dtype):
    """Against float64 at the same float32 levels: a rounding, at the last level too."""
    image, noise = pair(dtype)
    sigma, each = shares(dtype=torch.float32), ALL[name]
    ours = each.target(image, noise.float(), sigma)
    assert ours.dtype == torch.float32
    exact = each.target(image.double(), noise.double(), sigma.double())
    torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=1e-6)
    noisy = each.noised(image.float(), noise.float(), sigma)
    found = each.velocity(ours, noisy, sigma)
    wanted = each.velocity(ours.double(), noisy.double(), sigma.double())
    assert found.dtype == torch.float32
    # Noise alone tells an image 1 / (1 - s) times worse.
    scale = wide(1 / (1 - sigma.double())) if name == "eps" else 1.0
    assert ((found.double() - wanted) / scale).abs().max() <= 2e-6


@pytest.mark.parametrize("name", ["eps", "v", "edm"])
def test_a_generation_begins_with_the_spread_of_a_variance_preserving_model(name):
    _, noise = pair()
    k = 14.6146
    found = ALL[name].start(noise, k / (1 + k)) * (1 + k)
    torch.testing.assert_close(found, noise * math.sqrt(1 + k**2), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["eps", "v", "edm"])
def test_euler_steps_are_those_of_k_diffusion(name):
    """With a model that bends, in float64."""
    _, noise = (each[:2] for each in pair())
    ks = torch.tensor([4518.0 if name == "v" else 14.6, 5.0, 2.0, 0.7, 0.1, 0.0], dtype=noise.dtype)

    def model(latents, k):
        """The raw output for what a model of this kind is given."""
        return torch.tanh(1.3 * latents.roll(1, -1) / (k**2 + 1).sqrt() + k.log1p())

    x = noise * (1 + ks[0] ** 2).sqrt()
    for k, following in itertools.pairwise(ks):
        slope = (x - denoised(name, k, model(x, k), x)) / k
        x = x + (following - k) * slope

    def velocity(latents, sigma):
        sigma = wide(sigma)
        output = model(latents / (1 - sigma), sigma / (1 - sigma))
        return ALL[name].velocity(output, latents, sigma.flatten())

    sigmas = ks / (1 + ks)
    begin = ALL[name].start(noise, float(sigmas[0]))
    found = sample_euler(velocity, begin, sigmas)
    # Each sum is taken in float32 there.
    torch.testing.assert_close(found, x, rtol=0, atol=2e-5)


def test_the_loss_of_carried_sound_is_that_of_its_own_velocity():
    """Written with the sound's own noise level, of shifts 12 and 3, in float64."""
    source = torch.Generator().manual_seed(3)
    clean, noise, error = torch.randn(3, 5, 7, generator=source, dtype=torch.float64)
    place = torch.linspace(0.05, 0.95, 5, dtype=torch.float64)
    sigma, own = 12 * place / (1 + 11 * place), 3 * place / (1 + 2 * place)
    kind = flow(1.0, 4.0)
    carried = kind.noised(4 * clean, noise, sigma)
    heard = carried * (own / sigma)[:, None]
    torch.testing.assert_close(heard, (1 - own)[:, None] * clean + own[:, None] * noise)
    # What the network says of the sound is wrong by the error; ComfyUI makes the carried one of it.
    said = noise - clean + error
    output = (1 - 4) * heard + (1 + (4 - 1) * own)[:, None] * said
    apart = (output - kind.target(4 * clean, noise, sigma)).square()
    torch.testing.assert_close(kind.sound_weight(sigma)[:, None] * apart, error.square())
    assert (flow(1.0).sound_weight(sigma) == 1).all()
