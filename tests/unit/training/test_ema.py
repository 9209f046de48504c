"""Averages of factors against Diffusers' own, against float64, and through a restart."""

import pytest
import torch
from diffusers.training_utils import EMAModel
from torch import nn

from trainer_core.config import EmaSection
from trainer_core.training.checkpoints.ema import FactorAverages, exponential_share
from trainer_core.training.checkpoints.power_ema import KEPT_LENGTHS, exponent_of


def make_factors():
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.up": (7, 2), "a.down": (2, 5), "b.up": (3, 2)}
    return {n: nn.Parameter(torch.randn(s, generator=generator)) for n, s in shapes.items()}


def trained(factors, updates, first=0):
    """The factors after each update, of which every one is other numbers."""
    for update in range(first, updates):
        generator = torch.Generator().manual_seed(100 + update)
        with torch.no_grad():
            for each in factors.values():
                each.add_(torch.randn(each.shape, generator=generator) * 0.1)
        yield update + 1


@pytest.mark.parametrize("decay", [0.05, 0.5, 0.9, 0.9999])
def test_an_exponential_average_is_that_of_diffusers(decay):
    factors = make_factors()
    average = FactorAverages(EmaSection(decay=decay), factors)
    theirs = EMAModel(factors.values(), decay=decay)
    for update in trained(factors, 40):
        average.update()
        theirs.step(factors.values())
        assert exponential_share(decay, update) == theirs.cur_decay_value
    for own, other in zip(average.exponential.values(), theirs.shadow_params, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)
    assert theirs.cur_decay_value == (decay if decay < 0.8 else 40 / 49)


@pytest.mark.parametrize("settings", [{"decay": 0.9}, {"post_hoc": True}])
def test_averages_are_what_they_are_in_float64(settings):
    factors = make_factors()
    averages = FactorAverages(EmaSection(**settings), factors)
    shares = [lambda t: min(0.9, t / (9 + t)) if t > 1 else 0.0]
    if "post_hoc" in settings:
        exponents = [exponent_of(length) for length in KEPT_LENGTHS]
        shares = [lambda t, gamma=gamma: (1 - 1 / t) ** (gamma + 1) for gamma in exponents]
    expected = [{name: each.double() * 0 for name, each in factors.items()} for _ in shares]
    for update in trained(factors, 60):
        averages.update()
        for sums, share in zip(expected, shares, strict=True):
            for name, each in factors.items():
                sums[name] = share(update) * sums[name] + (1 - share(update)) * each.double()
    wanted = [each for sums in expected for each in sums.values()]
    for own, each in zip(averages.held(), wanted, strict=True):
        torch.testing.assert_close(own.double(), each.detach(), rtol=1e-6, atol=1e-6)
