"""The weights of the noise levels against their formulas and their means."""

import math

import pytest
import torch

from trainer_core.diffusion.parameterization import EPS, FLOW, edm, v_prediction
from trainer_core.diffusion.weighting import (
    BANDS,
    OF_FLOW,
    LearnedWeight,
    has_weighting,
    make_sigma_weight,
)

FORMULAS = ["sigma_sqrt", "cosmap", "min_snr", "logit_normal"]


SNRS = [1e4, 1500.0, 40.0, 5.0, 1.0, 0.1, 4.9e-8]


def level(snr):
    """The share of noise at which the signal is so much stronger."""
    return 1 / (1 + snr**0.5)


@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_min_snr_of_eps_and_v_is_the_papers(gamma):
    of_eps, of_v = (make_sigma_weight("min_snr", gamma, each) for each in (EPS, v_prediction()))
    for snr in SNRS:
        clipped = min(snr, gamma)
        assert of_eps(level(snr)) == pytest.approx(clipped / snr, rel=1e-6)
        assert of_v(level(snr)) == pytest.approx(clipped / (snr + 1), rel=1e-6)
    assert (of_eps(0.0), of_eps(1.0), of_v(0.0)) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "gamma"),
    [
        *((each, 5.0) for each in (FLOW, EPS, v_prediction(), v_prediction(0.5), edm(0.5))),
        *((FLOW, each) for each in (0.5, 20.0)),
    ],
)
def test_min_snr_weighs_the_error_of_the_image_whatever_is_predicted(kind, gamma):
    """From an output that is off by something, through the image that it stands for."""
    generator = torch.Generator().manual_seed(1)
    image, noise, wrong = torch.randn(3, 1, 4, 8, 8, generator=generator, dtype=torch.float64)
    weigh = make_sigma_weight("min_snr", gamma, kind)
    for share in (0.05, 0.31, 0.5, 0.9, 0.9997):
        sigma = torch.tensor([share], dtype=torch.float64)
        noisy, target = kind.noised(image, noise, sigma), kind.target(image, noise, sigma)
        made = noisy - share * kind.velocity(target + 0.1 * wrong, noisy, sigma)
        expected = min(((1 - share) / share) ** 2, gamma) * (made - image).square().mean()
        found = weigh(share) * (0.1 * wrong).square().mean()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_debiased_is_kohyas():
    of_eps, of_v = (make_sigma_weight("debiased", 5.0, each) for each in (EPS, v_prediction()))
    for snr in SNRS:
        bounded = min(snr, 1000.0)
        assert of_eps(level(snr)) == pytest.approx(1 / bounded**0.5, rel=1e-6)
        assert of_v(level(snr)) == pytest.approx(1 / (bounded + 1), rel=1e-6)


def test_a_formula_belongs_to_what_is_predicted():
    always = {"none", "min_snr", "learned"}
    for kind, others in (
        (FLOW, OF_FLOW),
        (EPS, {"debiased"}),
        (v_prediction(), {"debiased"}),
        (edm(0.5), set()),
    ):
        for name in always | OF_FLOW | {"debiased"}:
            assert has_weighting(name, kind) == (name in always | others)
    with pytest.raises(ValueError, match="flow has no weighting 'debiased'"):
        make_sigma_weight("debiased", 5.0)
    with pytest.raises(ValueError, match="eps has no weighting 'cosmap'"):
        make_sigma_weight("cosmap", 5.0, EPS)


def test_logit_normal_is_the_density_of_that_name():
    weigh = make_sigma_weight("logit_normal", 5.0)
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    logit_normal = torch.distributions.TransformedDistribution(
        normal, torch.distributions.SigmoidTransform()
    )
    for sigma in (0.001, 0.1, 0.5, 0.77, 0.999):
        exact = logit_normal.log_prob(torch.tensor(sigma, dtype=torch.float64)).exp().item()
        assert weigh(sigma) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, FLOW) for name in FORMULAS),
        *((name, kind) for name in ("min_snr", "debiased") for kind in (EPS, v_prediction())),
        ("min_snr", edm(0.5)),
    ],
)
def test_a_weight_is_finite_everywhere(name, kind):
    weigh = make_sigma_weight(name, 5.0, kind)
    levels = [0.0, 5e-324, 1e-300, 1e-12, 1e-3, 0.5, 1 - 1e-12, math.nextafter(1.0, 0.0), 1.0]
    for sigma in levels:
        assert math.isfinite(weigh(sigma))
        assert weigh(sigma) >= 0.0
    assert len({weigh(sigma) for sigma in levels}) > 2


def errors(count, seed=0):
    """Levels of a bell, with an error that grows towards the image."""
    generator = torch.Generator().manual_seed(seed)
    sigmas = torch.sigmoid(torch.randn(count, generator=generator, dtype=torch.float64))
    return [(float(sigma), 0.05 + 2.0 * (1 - float(sigma)) ** 3) for sigma in sigmas]


def learned_from(pairs):
    weigh = LearnedWeight()
    for start in range(0, len(pairs), 4):
        weigh.learn(pairs[start : start + 4])
    return weigh


def test_before_anything_is_known_every_level_counts_one():
    assert {LearnedWeight()(sigma) for sigma in (0.0, 0.5, 1.0)} == {1.0}
    nothing = learned_from([(0.3, 0.0), (0.8, 0.0)])
    assert nothing(0.3) == 1.0
    unknown = learned_from([(0.3, math.nan), (0.8, math.inf)])
    assert unknown(0.8) == 1.0


def test_bands_come_to_add_alike_to_the_loss():
    pairs = errors(8000)
    weigh = learned_from(pairs)
    bands = [[] for _ in range(BANDS)]
    for sigma, error in pairs:
        bands[int(sigma * BANDS)].append((sigma, error))
    known = [each for each in bands if len(each) > 300]
    assert len(known) > 5
    before = [sum(error for _, error in each) / len(each) for each in known]
    after = [sum(weigh(sigma) * error for sigma, error in each) / len(each) for each in known]
    assert max(before) / min(before) > 10
    assert max(after) / min(after) < 1.25


def test_it_goes_on_from_what_was_kept_as_if_it_had_not_stopped():
    pairs = errors(100)
    whole, stopped = learned_from(pairs), learned_from(pairs[:60])
    kept = {name: tensor.clone() for name, tensor in stopped.tensors().items()}
    assert all(each.dtype == torch.float64 for each in kept.values())
    resumed = LearnedWeight()
    resumed.restore(kept)
    for start in range(60, 100, 4):
        resumed.learn(pairs[start : start + 4])
    levels = [place / 50 for place in range(51)]
    assert [resumed(each) for each in levels] == [whole(each) for each in levels]
    fresh = LearnedWeight()
    fresh.restore({})
    assert {fresh(each) for each in levels} == {1.0}
    fresh.restore({name: torch.ones(3) for name in kept})
    assert {fresh(each) for each in levels} == {1.0}
