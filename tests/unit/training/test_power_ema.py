"""Averages that are made after the run, against averages of the whole run in float64."""

import numpy as np
import pytest

from trainer_core.training.checkpoints.power_ema import Profile, exponent_of, sum_for, update_shares


def walk(updates, size=50, seed=0):
    """Weights after each update of a made-up run: they move, and shake."""
    draw = np.random.default_rng(seed)
    drift = np.cumsum(draw.normal(size=(updates, size)), axis=0) / np.sqrt(updates)
    return drift + 0.3 * draw.normal(size=(updates, size))


def averaged(weights, profile):
    shares = update_shares(profile, np.arange(profile.updates + 1.0))
    return shares @ weights[: profile.updates]


@pytest.mark.parametrize(
    ("length", "near"), [(0.03, 0.15), (0.05, 1e-9), (0.07, 0.01), (0.1, 1e-9), (0.2, 0.03)]
)
def test_a_sum_of_kept_averages_is_the_average_of_the_whole_run(length, near):
    updates, every = 600, 30
    weights = walk(updates)
    kept = [Profile(t, own) for t in range(every, updates + 1, every) for own in (0.05, 0.1)]
    factors, error = sum_for(kept, Profile(updates, length))
    assert sum(factors) == pytest.approx(1.0, abs=1e-12)
    assert error < near
    made = sum(factor * averaged(weights, each) for factor, each in zip(factors, kept, strict=True))
    direct = averaged(weights, Profile(updates, length))
    spread = np.linalg.norm(weights[-1] - direct)
    assert np.linalg.norm(made - direct) < max(1.5 * near * spread, 1e-9)


def density_products(kept, other):
    """The source's closed form of the product of two densities, by definition and by number."""
    products = np.empty((len(kept), len(other)))
    for row, one in enumerate(kept):
        for column, two in enumerate(other):
            a, b = exponent_of(one.length), exponent_of(two.length)
            ends = np.sort([one.updates, two.updates]).astype(float)
            earlier, later = (a, b) if one.updates <= two.updates else (b, a)
            ratio = (ends[0] / ends[1]) ** later
            products[row, column] = (earlier + 1) * (later + 1) / (a + b + 1) * ratio / ends[1]
    return products


def test_the_sum_is_that_of_the_sources_closed_form():
    """Theirs is of densities and not tied to 1: it is nearly the same average, and a bit short."""
    updates = 6000
    kept = [Profile(t, own) for t in range(750, updates + 1, 750) for own in (0.05, 0.1)]
    wanted = Profile(updates, 0.15)
    gram = density_products(kept, kept)
    theirs = np.linalg.lstsq(gram, density_products(kept, [wanted])[:, 0], rcond=1e-12)[0]
    own, _ = sum_for(kept, wanted)
    edges = np.arange(updates + 1.0)
    rows = np.stack([update_shares(each, edges) for each in kept])
    assert np.linalg.norm((own - theirs) @ rows) < 1e-2 * np.linalg.norm(theirs @ rows)
    assert 0.99 < sum(theirs) < 0.999
    assert sum(own) == pytest.approx(1.0)
