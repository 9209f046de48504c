"""Densities on [0, 1] by their quantile functions, which torch does not have."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

_NODES = 256
_STEPS = 60
_SMALLEST = -690.0
_TERMS = 500
_TINY = 1e-300
_ENOUGH = 1e-15


@dataclass(frozen=True, slots=True)
class Density:
    """A density on [0, 1].

    Attributes:
        quantile: A place in [0, 1] to the sigma below which that share of the draws lies.
        cdf: Its inverse.
    """

    quantile: Callable[[float], float]
    cdf: Callable[[float], float]


def beta_density(alpha: float, beta: float) -> Density:
    """The beta distribution.

    Args:
        alpha: Above 0.
        beta: Above 0.
    """
    below, above = _LowerHalf(alpha, beta), _LowerHalf(beta, alpha)

    def quantile(place: float) -> float:
        if not 0.0 < place < 1.0:
            return float(place >= 1.0)
        return below.quantile(place) if place <= below.most else 1.0 - above.quantile(1.0 - place)

    return Density(quantile, lambda sigma: incomplete_beta(alpha, beta, sigma))


class _LowerHalf:
    """Quantiles of a beta distribution up to 1/2.

    They come from a table of its distribution function, and a few Newton steps that stay between
    two entries of it.

    Args:
        alpha: Above 0.
        beta: Above 0.

    Attributes:
        most: The share of the draws that lies below 1/2.
    """

    def __init__(self, alpha: float, beta: float) -> None:
        self._alpha, self._beta = alpha, beta
        self._nodes = [index / _NODES / 2 for index in range(_NODES + 1)]
        self._shares = [incomplete_beta(alpha, beta, node) for node in self._nodes]
        self._log_norm = _log_norm(alpha, beta)
        self.most = self._shares[-1]

    def quantile(self, place: float) -> float:
        """The sigma below which that share of the draws lies; `place` at most `most`."""
        behind = min(max(bisect.bisect_left(self._shares, place), 1), _NODES)
        low, high = self._nodes[behind - 1], self._nodes[behind]
        sigma = (low + high) / 2
        if behind == 1:
            # Beside 0 the density is a power, whose quantile is known.
            log = (math.log(place * self._alpha) - self._log_norm) / self._alpha
            sigma = min(max(math.exp(max(log, _SMALLEST)), _TINY), sigma)
        for _ in range(_STEPS):
            error = incomplete_beta(self._alpha, self._beta, sigma) - place
            low, high = (low, sigma) if error > 0 else (sigma, high)
            following = sigma - error / self._density(sigma)
            # Where Newton's step leaves the bracket, that is halved.
            following = following if low < following < high else (low + high) / 2
            if abs(following - sigma) <= _ENOUGH * sigma:
                return following
            sigma = following
        return sigma

    def _density(self, sigma: float) -> float:
        logs = (self._alpha - 1) * math.log(sigma) + (self._beta - 1) * math.log1p(-sigma)
        return math.exp(self._log_norm + logs)


def incomplete_beta(alpha: float, beta: float, place: float) -> float:
    """The regularized incomplete beta function: the beta distribution's own.

    Args:
        alpha: Above 0.
        beta: Above 0.
        place: In [0, 1].

    Source: DLMF 8.17.22, the continued fraction, by the modified Lentz method.
    """
    if not 0.0 < place < 1.0:
        return float(place >= 1.0)
    # It converges fast below the mean; above, the mirrored one does.
    if place > (alpha + 1) / (alpha + beta + 2):
        return 1.0 - incomplete_beta(beta, alpha, 1.0 - place)
    front = (
        math.exp(_log_norm(alpha, beta) + alpha * math.log(place) + beta * math.log1p(-place))
        / alpha
    )
    return front / _fraction(alpha, beta, place)


def _log_norm(alpha: float, beta: float) -> float:
    return math.lgamma(alpha + beta) - math.lgamma(alpha) - math.lgamma(beta)


def _fraction(alpha: float, beta: float, place: float) -> float:
    """``1 + d_1 / (1 + d_2 / (1 + ...))``."""
    value = c = 1.0
    d = 0.0
    for term in range(1, _TERMS):
        half, odd = divmod(term, 2)
        top = -(alpha + half) * (alpha + beta + half) if odd else half * (beta - half)
        part = top * place / ((alpha + term - 1) * (alpha + term))
        d = 1.0 / _not_zero(1.0 + part * d)
        c = _not_zero(1.0 + part / c)
        value *= c * d
        if abs(c * d - 1.0) < _ENOUGH:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
