"""Which noise levels are trained: densities on sigma in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ..errors import ConfigError

_SMALLEST_MASS = 1e-9


def shift_sigma(sigma: float, shift: float) -> float:
    """Move a noise level: ``shift sigma / (1 + (shift - 1) sigma)``; 0 and 1 stay.

    Args:
        sigma: In [0, 1].
        shift: Above 0. Larger than 1 moves towards noise; ``1 / shift`` is the inverse.

    Returns:
        The moved level, in [0, 1].

    Source: Esser et al., Scaling Rectified Flow Transformers (2024), section 5.3.2.
    """
    return shift * sigma / (1 + (shift - 1) * sigma)


def make_density(
    density: str, mean: float, std: float, shift: float, minimum: float, maximum: float
) -> Callable[[torch.Generator], float]:
    """Resolve the settings of the noise levels into one function.

    The density is cut off at the bounds, not clamped to them: no level is drawn more often because
    it lies at a bound. Each call takes exactly one number from the generator.

    Args:
        density: ``uniform``; ``logit_normal``, where the logit of sigma is normal; ``shifted``, the
            same moved by `shift_sigma`.
        mean: Mean of the logit.
        std: Standard deviation of the logit, above 0.
        shift: Above 0; only read by ``shifted``.
        minimum: Smallest sigma, in [0, 1).
        maximum: Largest sigma, in (0, 1], above ``minimum``.

    Returns:
        A function from a generator on the CPU to one sigma in [minimum, maximum].

    Raises:
        ConfigError: When the bounds leave nothing to draw from, or the density is unknown.
    """
    if not 0.0 <= minimum < maximum <= 1.0:
        raise ConfigError(
            f"training.sigma.min is {minimum} and training.sigma.max is {maximum}",
            "0 <= min < max <= 1",
            "Lower training.sigma.min or raise training.sigma.max.",
        )
    if density == "uniform":
        return lambda generator: minimum + (maximum - minimum) * _uniform(generator)
    if density == "logit_normal":
        return _logit_normal(mean, std, 1.0, minimum, maximum)
    if density == "shifted":
        return _logit_normal(mean, std, shift, minimum, maximum)
    raise ConfigError(
        f"training.sigma.density is {density!r}",
        "'logit_normal', 'uniform' or 'shifted'",
        "Choose one of these.",
    )


def _logit_normal(
    mean: float, std: float, shift: float, minimum: float, maximum: float
) -> Callable[[torch.Generator], float]:
    # A shift adds log(shift) to the logit, so a shifted logit-normal is a logit-normal again.
    moved = mean + math.log(shift)
    low = _normal_cdf((_logit(minimum) - moved) / std)
    high = _normal_cdf((_logit(maximum) - moved) / std)
    if high - low < _SMALLEST_MASS:
        raise ConfigError(
            f"training.sigma draws almost never between min = {minimum} and max = {maximum}",
            "bounds that the density reaches",
            "Widen training.sigma.min and max, or change mean, std or shift.",
        )

    def draw(generator: torch.Generator) -> float:
        place = torch.tensor(low + (high - low) * _uniform(generator), dtype=torch.float64)
        logit = moved + std * torch.special.ndtri(place)
        # Rounding in the tails may step over a bound by one unit in the last place.
        return min(max(float(torch.sigmoid(logit)), minimum), maximum)

    return draw


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator, dtype=torch.float64))


def _logit(sigma: float) -> float:
    if sigma <= 0.0:
        return -math.inf
    return math.inf if sigma >= 1.0 else math.log(sigma / (1 - sigma))


def _normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2))
