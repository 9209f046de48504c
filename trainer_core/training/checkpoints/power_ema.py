"""The arithmetic of post-hoc EMA: averages of a power function, and others made of them.

After update t the average of exponent gamma is ``keep * average + (1 - keep) * weights`` with
``keep = (1 - 1/t)^(gamma + 1)``. The share of update k in it is
``(k/t)^(gamma + 1) - ((k-1)/t)^(gamma + 1)``, the integral of the density ``(gamma + 1) x^gamma``
over the k-th of t equal parts. Such an average grows with the run: its length is the standard
deviation of the density, as a share of the run.

Averages of some lengths, kept at some times, are vectors of such shares. Any other average is close
to a sum of them; which one, is a problem of least squares over the shares alone.

Source:
    Karras et al. 2024, "Analyzing and Improving the Training Dynamics of Diffusion Models",
    arXiv:2312.02696, section 3 and appendix C. Here the shares are those of single updates and not
    a density, and the factors of the sum add up to 1, so that weights that stay as they are do so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

KEPT_LENGTHS = (0.05, 0.10)
"""Lengths of the two averages that a run keeps; those of the source."""

LONGEST = 1 / math.sqrt(12)
"""Length of the plain mean of all updates, whose exponent is 0; not reached."""

_MOST_PARTS = 8192
"""Parts of the run in which shares are compared; of a run that is no longer, each update is one."""

_NEGLIGIBLE = 1e-7
"""Singular values below this share of the largest are left out: kept averages are float32."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Which average of a run's updates.

    Attributes:
        updates: How many it was made of: the first ones.
        length: As a share of them.
    """

    updates: int
    length: float


def exponent_of(length: float) -> float:
    """The exponent gamma of an average of a length.

    Its square is ``(gamma + 1) / ((gamma + 2)^2 (gamma + 3))``.

    Args:
        length: Above 0 and below `LONGEST`.

    Raises:
        ValueError: When it is outside.
    """
    if not 0.0 < length < LONGEST:
        raise ValueError(f"a length of {length} is not between 0 and {LONGEST:.4f}")
    inverse = length**-2
    roots = np.roots([1.0, 7.0, 16.0 - inverse, 12.0 - inverse])
    return float(max(root.real for root in roots if abs(root.imag) < 1e-6 * abs(root) + 1e-9))


def kept_share(updates: int, exponent: float) -> float:
    """How much of the average an update keeps.

    Args:
        updates: How many it is made of with this one, from 1.
    """
    return (1.0 - 1.0 / updates) ** (exponent + 1.0)


def update_shares(profile: Profile, edges: Numbers) -> Numbers:
    """The shares that parts of a run have in an average.

    Args:
        edges: Numbers of updates between which the parts lie, ascending from 0 `[parts + 1]`.

    Returns:
        `[parts]`, which add up to 1 where the last edge is not before the average's last update.
    """
    whole = np.minimum(edges / profile.updates, 1.0)
    return np.diff(whole ** (exponent_of(profile.length) + 1.0))


def sum_for(kept: Sequence[Profile], wanted: Profile) -> tuple[list[float], float]:
    """Factors with which kept averages add up to another one, as near as that is possible.

    Args:
        kept: The averages that there are; none is made of more updates than the wanted one.

    Returns:
        A factor for each, which add up to 1; and how far off the shares are: the norm of the
        difference over the norm of the wanted ones.
    """
    edges = _edges(kept, wanted)
    # The norm of a density: shares of wide parts count for less.
    scale = 1.0 / np.sqrt(np.diff(edges))
    target = update_shares(wanted, edges) * scale
    rows = np.stack([update_shares(each, edges) * scale for each in kept])
    # That they add up to 1 leaves one of them no choice.
    last, others = rows[-1], rows[:-1] - rows[-1]
    free: Numbers = np.zeros(0)
    if len(others):
        free = np.linalg.lstsq(others.T, target - last, rcond=_NEGLIGIBLE)[0]
    factors = [*map(float, free), 1.0 - float(free.sum())]
    error = np.linalg.norm(np.asarray(factors) @ rows - target) / np.linalg.norm(target)
    return factors, float(error)


def _edges(kept: Sequence[Profile], wanted: Profile) -> Numbers:
    last = wanted.updates
    even = np.linspace(0, last, min(last, _MOST_PARTS) + 1).round()
    return np.unique([*even, *(float(each.updates) for each in kept)])
