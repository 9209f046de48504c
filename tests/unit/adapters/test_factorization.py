import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.adapters.kinds.lokr import factorize


@pytest.mark.parametrize(
    ("dimension", "factor", "expected"),
    [
        (3072, -1, (48, 64)),
        (9216, -1, (96, 96)),
        (12288, -1, (96, 128)),
        (3072, 8, (8, 384)),
        (512, 4, (4, 128)),
        (512, -1, (16, 32)),
        (512, 32, (16, 32)),
        (250, 4, (2, 125)),
        (127, -1, (1, 127)),
        (7, 0, (1, 7)),
        (1, -1, (1, 1)),
    ],
)
def test_known_splits(dimension, factor, expected):
    assert factorize(dimension, factor) == expected


@given(st.integers(1, 5000), st.integers(-1, 200))
def test_every_split_is_exact_and_sorted(dimension, factor):
    small, large = factorize(dimension, factor)
    assert small * large == dimension
    assert 1 <= small <= large
    if factor > 0 and dimension % factor:
        assert small <= factor


@given(st.integers(1, 5000))
def test_minus_one_takes_the_divisor_nearest_to_the_root(dimension):
    divisors = [d for d in range(1, math.isqrt(dimension) + 1) if dimension % d == 0]
    assert factorize(dimension, -1) == (divisors[-1], dimension // divisors[-1])
