"""Which images look alike: against brute force, and on images that were saved again."""

import numpy as np
import pytest
from PIL import Image

from trainer_core.data.report.duplicates import (
    MOST_BITS,
    MOST_GREY,
    look_hashes,
    near_duplicates,
    near_pairs,
)


def smooth(count: int, seed: int = 0, side: int = 4) -> np.ndarray:
    """Looks as photographs have them: neighbours agree."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, side, side), dtype=np.uint8)
    fine = [Image.fromarray(each).resize((9, 8), Image.Resampling.BICUBIC) for each in coarse]
    return np.stack([np.asarray(each) for each in fine]).reshape(count, 72)


def bits_apart(one: int, other: int) -> int:
    return (one ^ other).bit_count()


def brute_force(hashes: np.ndarray, most: int) -> list[tuple[int, int]]:
    plain = [int(each) for each in hashes]
    return [
        (first, second)
        for first in range(len(plain))
        for second in range(first + 1, len(plain))
        if bits_apart(plain[first], plain[second]) <= most
    ]


def clustered(count: int, seed: int) -> np.ndarray:
    """Hashes of which many differ in few bits, and many share most of them."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 2**64, 20, dtype=np.uint64)
    found = centres[rng.integers(0, 20, count)]
    for _ in range(5):
        found = found ^ (np.uint64(1) << rng.integers(0, 64, count).astype(np.uint64))
    return np.unique(found)


@pytest.mark.parametrize("most", [0, 2, 4])
def test_pairs_are_those_of_brute_force(most):
    for hashes in (clustered(900, 1), np.unique(look_hashes(smooth(900, 2)))):
        pairs = [tuple(map(int, pair)) for pair in near_pairs(hashes, most)]
        expected = brute_force(hashes, most)
        assert pairs == expected
        assert expected or most == 0


def test_groups_are_those_of_brute_force():
    looks = smooth(200, 4)
    noise = np.random.default_rng(5).integers(-2, 3, (60, 72))
    near = (looks[:60].astype(int) + noise).clip(0, 255).astype(np.uint8)
    looks = np.concatenate([looks, near, near[:10]])
    hashes = [int(each) for each in look_hashes(looks)]
    group = list(range(len(looks)))
    for first in range(len(looks)):
        for second in range(first):
            moved = looks[first].astype(float) - looks[second]
            grey = np.abs(moved - moved.mean()).mean()
            if bits_apart(hashes[first], hashes[second]) <= MOST_BITS and grey <= MOST_GREY:
                one, other = sorted((group[first], group[second]))
                group = [one if each == other else each for each in group]
    expected = {
        tuple(place for place in range(len(looks)) if group[place] == top)
        for top in set(group)
        if group.count(top) > 1
    }
    found = {tuple(each) for each in near_duplicates(looks)}
    assert found == expected
    assert len(found) > 30
