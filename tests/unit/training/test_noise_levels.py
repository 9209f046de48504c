"""What a step draws for its samples: each for itself, or so that the draws of a sample cancel."""

import math
from dataclasses import replace

import pytest
import torch
from fixtures.small_steps import SEED, SHAPES, Model, batch_of, maker

from trainer_core.training.step.make_loss import at_noise
from trainer_core.training.step.noise_draws import independent_draw, stratified_draw
from trainer_core.types import SampleTurn

VISITS = 64


def noise(draw):
    return draw.normal_(torch.empty(4, 6, 8))


def test_two_visits_have_one_level_and_opposite_noise():
    first, second, third = (stratified_draw(SEED, 5, turn) for turn in range(3))
    assert first.place == second.place != third.place
    assert torch.equal(noise(first), -noise(second))
    assert torch.equal(
        first.normal_(torch.empty(3), "noise of sound"),
        -second.normal_(torch.empty(3), "noise of sound"),
    )
    assert not torch.equal(noise(first).abs(), noise(third).abs())
    assert not torch.equal(noise(first), noise(stratified_draw(SEED, 6, 0)))
    assert not torch.equal(noise(first), noise(stratified_draw(SEED + 1, 5, 0)))


@pytest.mark.parametrize("turn", [0, 1, 6, 7])
def test_each_visit_by_itself_is_drawn_like_an_independent_one(turn):
    """Over samples: Kolmogorov-Smirnov, 1 % level, and mean and variance of the noise."""
    draws = [stratified_draw(SEED, sample, turn) for sample in range(800)]
    places = sorted(draw.place for draw in draws)
    distance = max(abs(place - (at + 0.5) / 800) for at, place in enumerate(places))
    assert distance < 1.63 / math.sqrt(800)
    values = torch.stack([draw.normal_(torch.empty(64)) for draw in draws])
    assert abs(values.mean()) < 4 / math.sqrt(values.numel())
    assert abs(values.var() - 1) < 4 * math.sqrt(2 / values.numel())


def test_the_mean_of_many_visits_is_nearer_to_the_expectation():
    """Of a gradient that depends on level and noise as a linear model's does."""

    def error(draws):
        # E = 1/2 + 1/3: of the level, and of its square times the squared noise.
        terms = [
            draw.place + draw.place**2 * (z := float(draw.normal_(torch.empty(1)))) ** 2 + z
            for draw in draws
        ]
        return (sum(terms) / len(terms) - 5 / 6) ** 2

    samples = range(200)
    stratified = [error([stratified_draw(SEED, s, t) for t in range(VISITS)]) for s in samples]
    independent = [error([independent_draw(SEED, s, t) for t in range(VISITS)]) for s in samples]
    assert sum(stratified) < 0.5 * sum(independent)


def prepared(batch, **settings):
    (points,) = maker(Model(SHAPES["plain"]), batch, stratified=True, **settings).prepare(1, 0)
    return points


def visited(*turns, **fields):
    batch = batch_of(SHAPES["plain"], positions=range(len(turns)))
    batch = replace(batch, latents=torch.zeros_like(batch.latents), **fields)
    return replace(batch, turns=tuple(turn and SampleTurn(4, turn - 1) for turn in turns))


@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_a_step_uses_the_draws_of_its_visits(offset):
    points = prepared(visited(1, 2, None), noise_offset=offset)
    first, second, other = points.noisy
    assert points.sigmas[0] == points.sigmas[1] == stratified_draw(SEED, 4, 0).place
    assert torch.equal(first, -second)
    assert points.sigmas[2] == independent_draw(SEED, 1, 2).place
    assert not torch.equal(other.abs(), first.abs())


def test_both_sides_of_a_sample_have_one_draw():
    batch = visited(3)
    found = [prepared(at_noise(batch, 4, turn), signs=2) for turn in range(4)]
    assert torch.equal(found[0].noisy, found[1].noisy)
    assert torch.equal(found[2].noisy, found[3].noisy)
    assert torch.equal(found[0].noisy, -found[2].noisy)
