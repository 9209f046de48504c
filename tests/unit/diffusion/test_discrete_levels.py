"""The discrete levels of a model: how each is drawn, how a generation passes them; and bands."""

from collections import Counter

import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.schedulers.scheduling_ddpm import rescale_zero_terminal_snr

from trainer_core.diffusion.discrete_levels import NoiseLevels
from trainer_core.diffusion.sigma import band_shares, make_quantile

BETAS = DDPMScheduler(1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear").betas


def k_of(betas):
    """k-diffusion's table, in float64."""
    kept = (1 - betas.double()).cumprod(0)
    return ((1 - kept) / kept).sqrt()


LEVELS = NoiseLevels.from_k(k_of(BETAS).tolist())


def test_every_level_is_drawn_alike_over_a_uniform_time():
    quantile = make_quantile("uniform", 0.0, 1.0, 1.0, 0.0, 1.0)
    places = [(index + 0.5) / 4000 for index in range(4000)]
    drawn = Counter(LEVELS.at(quantile(place)) for place in places)
    assert set(drawn) == set(LEVELS.shares)
    assert set(drawn.values()) == {4}
    assert LEVELS.at(0.0) == LEVELS.shares[0]
    assert LEVELS.at(1.0) == LEVELS.at(0.9999) == LEVELS.shares[-1]


def test_bands_are_those_of_the_levels_that_are_drawn():
    found = band_shares(LEVELS.at, 5)
    k = k_of(BETAS)
    expected = torch.histc(k / (1 + k), 5, 0, 1) / 1000
    assert found == pytest.approx(expected.tolist(), abs=1e-9)
    # SDXL's table: most of its times are strong noise.
    assert found[0] < 0.2 < found[3]


def test_a_schedule_without_signal_at_its_end_stays_below_pure_noise():
    betas = rescale_zero_terminal_snr(BETAS)
    k = k_of(betas)
    assert not torch.isfinite(k[-1])
    with pytest.raises(ValueError, match="below 1"):
        NoiseLevels.from_k(k.tolist())
    # ComfyUI's last level of such a table.
    k[-1] = ((1 - 4.8973451890853435e-08) / 4.8973451890853435e-08) ** 0.5
    levels = NoiseLevels.from_k(k.tolist())
    assert 0.9997 < levels.shares[-1] < 1.0
    assert float(levels.sampling(4)[0]) < 1.0


def test_a_generation_begins_at_the_strongest_and_ends_at_none():
    sigmas = LEVELS.sampling(20)
    assert len(sigmas) == 21
    assert sigmas.dtype == torch.float32
    assert sigmas[0] == torch.tensor(LEVELS.shares[999])
    assert sigmas[1] == torch.tensor(LEVELS.shares[949])
    assert sigmas[19] == torch.tensor(LEVELS.shares[49])
    assert sigmas[20] == 0
    assert bool((sigmas[1:] < sigmas[:-1]).all())


@pytest.mark.parametrize("wrong", [[], [0.0, 1.0], [2.0, 1.0], [1.0, float("inf")]])
def test_what_is_no_schedule_is_refused(wrong):
    with pytest.raises(ValueError, match="ascend"):
        NoiseLevels.from_k(wrong)
