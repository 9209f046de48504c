"""Noise levels put into bands of equal width, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

PARTS = 20
"""Into how many parts of equal width noise levels are sorted where they are counted."""

_WIDTH = 40


def band_of(sigma: float, bands: int) -> int:
    """The band of a noise level.

    Args:
        sigma: In [0, 1]; 1 belongs to the last band.
        bands: How many there are.
    """
    return min(bands - 1, max(0, int(sigma * bands)))


def band_means(
    sigmas: Sequence[float], values: Sequence[float], bands: int
) -> tuple[float | None, ...]:
    """The mean of values by their noise levels' bands.

    Args:
        sigmas: Noise levels in [0, 1].
        bands: How many there are.

    Returns:
        From the lowest noise on; None for a band without a value.
    """
    sums, counts = [0.0] * bands, [0] * bands
    for sigma, value in zip(sigmas, values, strict=True):
        band = band_of(sigma, bands)
        sums[band] += value
        counts[band] += 1
    return tuple(
        total / count if count else None for total, count in zip(sums, counts, strict=True)
    )


def counted_levels(sigmas: Sequence[float]) -> dict[str, int]:
    """How many noise levels are in each of the `PARTS` parts, by its number; none that is empty."""
    counts = Counter(band_of(sigma, PARTS) for sigma in sigmas)
    return {str(part): counts[part] for part in sorted(counts)}


def sum_of_levels(steps: Sequence[Mapping[str, int] | None]) -> tuple[int, ...]:
    """Add what `counted_levels` gave.

    Args:
        steps: One for each step; None where a step was not counted.

    Returns:
        `PARTS` counts from the lowest noise on; empty where no step was counted.
    """
    totals = [0] * PARTS
    for counts in steps:
        for part, count in (counts or {}).items():
            if part.isdecimal() and int(part) < PARTS:
                totals[int(part)] += count
    return tuple(totals) if any(totals) else ()


def histogram_text(counts: Sequence[int]) -> list[str]:
    """Draw counts of noise levels as bars of text, a line for each part from the lowest noise on.

    Args:
        counts: Of parts of equal width; one is above zero.
    """
    most, parts, total = max(counts), len(counts), sum(counts)
    lines: list[str] = []
    for part, count in enumerate(counts):
        # What there is at all shows.
        bar = "#" * max(int(count > 0), round(_WIDTH * count / most))
        span = f"{part / parts:.2f}-{(part + 1) / parts:.2f}"
        lines.append(f"{span} {100 * count / total:5.1f} % {bar}".rstrip())
    return lines
