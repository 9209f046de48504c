"""The densities of sigma against their formulas."""

import math

import mpmath
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.training_utils import compute_density_for_timestep_sampling

from trainer_core.diffusion.densities import beta_density
from trainer_core.diffusion.sigma import make_quantile, shift_sigma
from trainer_core.errors import ConfigError

DRAWS = 4000
# Kolmogorov-Smirnov: a right sampler exceeds this in 1 of 1000 seeds, and the seed is fixed.
LIMIT = 1.95 / math.sqrt(DRAWS)


def draws(density: str, **changes: float) -> torch.Tensor:
    settings = {"mean": 0.0, "std": 1.0, "shift": 1.0, "minimum": 0.0, "maximum": 1.0} | changes
    quantile = make_quantile(density, **settings)
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(DRAWS, generator=generator, dtype=torch.float64)
    return torch.tensor([quantile(place) for place in places.tolist()], dtype=torch.float64)


def distance(found: torch.Tensor, cdf) -> float:
    ranked = cdf(found.sort().values)
    ideal = torch.arange(1, len(found) + 1, dtype=torch.float64) / len(found)
    return float((ranked - ideal).abs().max())


def logit_normal_cdf(sigma: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    return torch.special.ndtr((torch.logit(sigma) - mean) / std)


@pytest.mark.parametrize("name", ["shifted", "logit_normal"])
def test_a_shift_moves_the_logit_normal(name):
    shifted = draws(name, shift=3.0, mean=0.2)
    plain = draws("logit_normal", mean=0.2)
    expected = torch.tensor([shift_sigma(float(sigma), 3.0) for sigma in plain])
    torch.testing.assert_close(shifted.float(), expected)


def diffusers_draws(scheme: str, **settings: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    theirs = compute_density_for_timestep_sampling(
        scheme, batch_size=DRAWS, generator=generator, **settings
    )
    return theirs.double().sort().values


def distance_between(found: torch.Tensor, theirs: torch.Tensor) -> float:
    """Kolmogorov-Smirnov distance of two samples."""
    return distance(found, lambda sigma: torch.searchsorted(theirs, sigma, right=True) / DRAWS)


# Of two samples of this size the distance exceeds this in 1 of 1000 seeds.
LIMIT_OF_TWO = LIMIT * math.sqrt(2)


@pytest.mark.parametrize("scale", [1.29, -0.9, 0.0, 1.75])
def test_mode_is_diffusers_density(scale):
    theirs = diffusers_draws("mode", mode_scale=scale)
    assert distance_between(draws("mode", mode_scale=scale), theirs) < LIMIT_OF_TWO
    other = draws("mode", mode_scale=0.6)
    assert distance_between(other, theirs) > LIMIT_OF_TWO


@pytest.mark.parametrize("shift", [1.0, 3.0, 0.5])
def test_uniform_with_a_shift_is_what_diffusers_scripts_draw(shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    places = (diffusers_draws("none") * 1000).long()
    theirs = scheduler.sigmas[places].double().sort().values
    limit = LIMIT_OF_TWO + 0.002  # theirs are one of 1000 levels
    assert distance_between(draws("uniform", shift=shift), theirs) < limit
    assert distance_between(draws("uniform", shift=2 * shift), theirs) > limit


def mode_cdf(sigma: torch.Tensor) -> torch.Tensor:
    """The published function, turned round on a grid."""
    u = torch.linspace(1, 0, 100_001, dtype=torch.float64)
    levels = 1 - u - 1.29 * (torch.cos(math.pi * u / 2) ** 2 - 1 + u)
    return torch.searchsorted(levels, sigma) / len(levels)


CDFS = {
    "uniform": lambda sigma: sigma,
    "content": lambda sigma: 1 - (1 - sigma) ** (1 / 3),
    "style": lambda sigma: sigma ** (1 / 3),
    "mode": mode_cdf,
    "cosmap": lambda sigma: torch.atan(sigma / (1 - sigma)) * 2 / math.pi,
}


@pytest.mark.parametrize("density", CDFS)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.1, 0.7)])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_a_density_follows_its_closed_form_within_bounds_and_moved(density, low, high, shift):
    def moved(sigma):
        return CDFS[density](sigma / (shift - (shift - 1) * sigma))

    bounds = torch.tensor([low, high], dtype=torch.float64)
    below, within = moved(bounds)[0], moved(bounds).diff()
    found = draws(density, minimum=low, maximum=high, shift=shift)
    assert low <= found.min()
    assert found.max() <= high
    assert distance(found, lambda sigma: (moved(sigma) - below) / within) < LIMIT
    others = [name for name in CDFS if name != density]
    for other in others:
        wrong = draws(other, minimum=low, maximum=high, shift=shift)
        assert distance(wrong, lambda sigma: (moved(sigma) - below) / within) > LIMIT


def test_bounds_cut_off_without_piling_up():
    found = draws("shifted", shift=3.0, minimum=0.5, maximum=0.9)
    low, high = (
        float(logit_normal_cdf(torch.tensor(bound, dtype=torch.float64), math.log(3), 1.0))
        for bound in (0.5, 0.9)
    )

    def cdf(sigma):
        return (logit_normal_cdf(sigma, math.log(3), 1.0) - low) / (high - low)

    assert found.min() >= 0.5
    assert found.max() <= 0.9
    assert distance(found, cdf) < LIMIT


@pytest.mark.parametrize(
    ("alpha", "beta"), [(1, 1), (2, 5), (0.5, 0.5), (0.1, 3), (5, 1), (100, 100), (1, 100), (30, 2)]
)
def test_beta_is_the_beta_distribution(alpha, beta):
    density = beta_density(alpha, beta)
    for place in (1e-9, 1e-4, 0.03, 0.2, 0.5, 0.71, 0.99, 1 - 1e-6):
        exact = float(mpmath.betainc(alpha, beta, 0, place, regularized=True))
        assert density.cdf(place) == pytest.approx(exact, abs=1e-13)
    for share in (1e-6, 0.01, 0.3, 0.5, 0.8, 0.999):
        sigma = density.quantile(share)
        there = float(mpmath.betainc(alpha, beta, 0, sigma, regularized=True))
        assert there == pytest.approx(share, abs=1e-10)
    assert (density.quantile(0.0), density.quantile(1.0)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("density", "changes", "part"),
    [
        ("uniform", {"minimum": 0.6, "maximum": 0.5}, "training.sigma.min"),
        ("logit_normal", {"mean": 5.0, "std": 0.1, "maximum": 0.1}, "training.sigma"),
        ("cosine", {}, "training.sigma.density"),
        ("style", {"minimum": 1 - 1e-12}, "training.sigma"),
    ],
)
def test_impossible_settings_are_refused_by_name(density, changes, part):
    with pytest.raises(ConfigError) as error:
        draws(density, **changes)
    assert part in error.value.found
    assert error.value.remedy
