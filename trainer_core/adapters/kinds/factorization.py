"""How LoKr splits a dimension into the sizes of its two factors."""

from __future__ import annotations


def factorize(dimension: int, factor: int) -> tuple[int, int]:
    """Split a dimension into two factors, the smaller first.

    A factor that divides the dimension is taken as it is. Otherwise the search walks the divisors
    upwards, towards the most balanced split, and stops at the last one that is not above `factor`.

    Args:
        dimension: The size to split, at least 1.
        factor: The wanted size of one factor; -1 asks for the most balanced split.

    Returns:
        ``(small, large)`` with ``small * large == dimension`` and ``small <= large``.

    Source:
        LyCORIS 4.1.3, ``functional.general.factorization``.
    """
    if factor > 0 and dimension % factor == 0:
        other = dimension // factor
        return min(factor, other), max(factor, other)
    limit = dimension if factor < 0 else factor
    small, large = 1, dimension
    while small < large:
        candidate = small + 1
        while dimension % candidate != 0:
            candidate += 1
        partner = dimension // candidate
        if candidate + partner > small + large or candidate > limit:
            break
        small, large = candidate, partner
    return min(small, large), max(small, large)
