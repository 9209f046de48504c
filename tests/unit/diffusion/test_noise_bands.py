"""Noise levels in bands, against counting by hand and NumPy's histogram."""

import numpy as np
import pytest

from trainer_core.diffusion.noise_bands import (
    PARTS,
    band_means,
    band_of,
    counted_levels,
    histogram_text,
    sum_of_levels,
)


def test_means_are_those_of_the_values_in_each_band():
    sigmas, errors = [0.0, 0.1, 0.25, 0.74, 1.0], [1.0, 3.0, 5.0, 7.0, 9.0]
    assert band_means(sigmas, errors, 4) == (2.0, 5.0, 7.0, 9.0)
    assert band_means([0.9], [2.0], 4) == (None, None, None, 2.0)
    assert band_means(sigmas, errors, 1) == (5.0,)


@pytest.mark.parametrize("bands", [1, 4, 7, 20])
def test_bands_are_those_of_a_histogram(bands):
    sigmas = np.random.default_rng(0).uniform(size=500)
    wanted, _ = np.histogram(sigmas, bands, (0.0, 1.0))
    assert [sum(band_of(s, bands) == n for s in sigmas) for n in range(bands)] == wanted.tolist()


def test_counts_of_steps_add_up_to_those_of_all_samples():
    sigmas = np.random.default_rng(1).uniform(size=(50, 6))
    steps = [counted_levels(step.tolist()) for step in sigmas]
    wanted, _ = np.histogram(sigmas, PARTS, (0.0, 1.0))
    assert sum_of_levels([*steps, None]) == tuple(wanted.tolist())
    assert sum_of_levels([None, None]) == ()
    # What another version, or a hand, has written is passed over.
    assert sum_of_levels([{"99": 1, "-1": 1, "x": 2, "3": 4}]) == (0, 0, 0, 4, *[0] * (PARTS - 4))


def test_a_picture_shows_the_shares_and_all_that_is_there():
    assert histogram_text([0, 1, 100, 99]) == [
        "0.00-0.25   0.0 %",
        "0.25-0.50   0.5 % #",
        "0.50-0.75  50.0 % " + "#" * 40,
        "0.75-1.00  49.5 % " + "#" * 40,
    ]
