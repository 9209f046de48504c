"""Noise levels in [0, 1]: densities to train on, a sampler's schedule, a base's shift."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ConfigError
from .densities import Density, beta_density
from .noise_bands import band_of

_SMALLEST_MASS = 1e-9
_HALVINGS = 60


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


def make_quantile(
    density: str,
    mean: float,
    std: float,
    shift: float,
    minimum: float,
    maximum: float,
    mode_scale: float = 1.29,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Callable[[float], float]:
    """Resolve the settings of the noise levels into their quantile function.

    The density is cut off at the bounds, not clamped to them: no level is drawn more often because
    it lies at a bound.

    Args:
        density: With u uniform in [0, 1]: ``uniform`` is u; ``logit_normal`` has a normal logit;
            ``shifted`` is the same by another name; ``mode`` is
            ``1 - u - mode_scale (cos(pi u / 2)^2 - 1 + u)``; ``content`` is ``1 - u^3``, mostly
            noise; ``style`` is ``u^3``, mostly image; ``cosmap`` is
            ``1 - 1 / (tan(pi u / 2) + 1)``; ``beta`` has the density
            ``sigma^(alpha - 1) (1 - sigma)^(beta - 1) / B(alpha, beta)``.
        mean: Mean of the logit.
        std: Standard deviation of the logit, above 0.
        shift: Above 0; every density is moved by `shift_sigma`.
        minimum: Smallest sigma, in [0, 1).
        maximum: Largest sigma, in (0, 1], above ``minimum``.
        mode_scale: In [-1, 1.75]; only read by ``mode``.
        alpha: Above 0; only read by ``beta``.
        beta: Above 0; only read by ``beta``.

    Returns:
        A place in [0, 1] to the sigma, in [minimum, maximum], below which that share of the draws
        lies.

    Raises:
        ConfigError: When the bounds leave nothing to draw from, or the density is unknown.

    Source: Esser et al. 2024, section 3.1, for ``logit_normal``, ``mode`` and ``cosmap``; Mou et
    al., T2I-Adapter (2023), section 3.4, for the cubic ones, which ai-toolkit calls content and
    style.
    """
    if not 0.0 <= minimum < maximum <= 1.0:
        raise ConfigError(
            f"training.sigma.min is {minimum} and training.sigma.max is {maximum}",
            "0 <= min < max <= 1",
            "Lower training.sigma.min or raise training.sigma.max.",
        )
    if density in {"logit_normal", "shifted"}:
        # A shift adds log(shift) to the logit, so a shifted logit-normal is a logit-normal again.
        return _cut_off(_logit_normal(mean + math.log(shift), std), minimum, maximum)
    return _cut_off(_shifted(_named(density, mode_scale, alpha, beta), shift), minimum, maximum)


def _named(density: str, mode_scale: float, alpha: float, beta: float) -> Density:
    """A density that a shift is applied to afterwards."""
    if density == "beta":
        return beta_density(alpha, beta)
    plain = {
        "uniform": Density(lambda place: place, lambda sigma: sigma),
        "mode": _mode(mode_scale),
        "content": Density(lambda place: 1 - (1 - place) ** 3, lambda s: 1 - (1 - s) ** (1 / 3)),
        "style": Density(lambda place: place**3, lambda sigma: sigma ** (1 / 3)),
        "cosmap": _COSMAP,
    }
    if density not in plain:
        raise ConfigError(
            f"training.sigma.density is {density!r}",
            f"one of logit_normal, shifted, beta, {', '.join(plain)}",
            "Choose one of these.",
        )
    return plain[density]


_COSMAP = Density(
    # 1 - 1 / (tan + 1), written so that nothing is infinite at either end.
    lambda place: (
        math.sin(math.pi * place / 2)
        / (math.sin(math.pi * place / 2) + math.cos(math.pi * place / 2))
    ),
    lambda sigma: math.atan2(sigma, 1 - sigma) * 2 / math.pi,
)


def _cut_off(density: Density, minimum: float, maximum: float) -> Callable[[float], float]:
    low, high = density.cdf(minimum), density.cdf(maximum)
    if high - low < _SMALLEST_MASS:
        raise ConfigError(
            f"training.sigma draws almost never between min = {minimum} and max = {maximum}",
            "bounds that the density reaches",
            "Widen training.sigma.min and training.sigma.max, or change density, mean, std or "
            "shift.",
        )

    def quantile(place: float) -> float:
        sigma = density.quantile(low + (high - low) * place)
        # Rounding in the tails may step over a bound by one unit in the last place.
        return min(max(sigma, minimum), maximum)

    return quantile


def _shifted(density: Density, shift: float) -> Density:
    return Density(
        lambda place: shift_sigma(density.quantile(place), shift),
        # Rounding may step over 1 by one unit in the last place.
        lambda sigma: density.cdf(min(shift_sigma(sigma, 1 / shift), 1.0)),
    )


def _logit_normal(mean: float, std: float) -> Density:
    def quantile(place: float) -> float:
        logit = mean + std * torch.special.ndtri(torch.tensor(place, dtype=torch.float64))
        return float(torch.sigmoid(logit))

    def cdf(sigma: float) -> float:
        if not 0.0 < sigma < 1.0:
            return float(sigma > 0.0)
        logit = math.log(sigma / (1 - sigma))
        return 0.5 * math.erfc((mean - logit) / std / math.sqrt(2))

    return Density(quantile, cdf)


def _mode(scale: float) -> Density:
    # The published function falls; at 1 - u it is the quantile. It never falls within the bounds
    # of `scale`, so halving finds its inverse.
    def quantile(place: float) -> float:
        return place + scale * (place - math.sin(math.pi * place / 2) ** 2)

    def cdf(sigma: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if quantile(middle) < sigma else (low, middle)
        return low if sigma <= 0.0 else high

    return Density(quantile, cdf)


_PLACES = 2000


def band_shares(quantile: Callable[[float], float], bands: int) -> list[float]:
    """Tell how often each of some bands of equal width is drawn.

    Args:
        quantile: Of `make_quantile`.

    Returns:
        Shares that add up to 1, counted at 2000 places.
    """
    counts = [0] * bands
    for index in range(_PLACES):
        counts[band_of(quantile((index + 0.5) / _PLACES), bands)] += 1
    return [count / _PLACES for count in counts]


@dataclass(frozen=True, slots=True)
class ShiftSettings:
    """How a base's scheduler moves its noise levels.

    Attributes:
        dynamic: Whether the shift follows the image's size.
        shift: The fixed shift, used when not ``dynamic``.
        base_shift: Dynamic: mu at ``base_tokens``.
        max_shift: Dynamic: mu at ``max_tokens``.
        base_tokens: Number of image tokens of the smallest image.
        max_tokens: Number of image tokens of the largest image.
        exponential: Dynamic: whether the shift is ``exp(mu)`` (else ``mu``).
        terminal: The last sigma above 0 of every schedule, or None to leave it where it falls.
        mu: Dynamic: the number of image tokens to mu, where it is not a straight line between the
            two.
    """

    dynamic: bool = False
    shift: float = 1.0
    base_shift: float = 0.5
    max_shift: float = 1.15
    base_tokens: int = 256
    max_tokens: int = 4096
    exponential: bool = True
    terminal: float | None = None
    mu: Callable[[int], float] | None = None


def shift_factor(settings: ShiftSettings, tokens: int) -> float:
    """The factor of `shift_sigma` that a base's scheduler uses, above 0; 1 moves no sigma.

    Args:
        tokens: Number of image tokens of the image that is generated, controls not counted.
    """
    if not settings.dynamic:
        return settings.shift
    mu = settings.mu(tokens) if settings.mu else _straight_mu(settings, tokens)
    return math.exp(mu) if settings.exponential else mu


def _straight_mu(settings: ShiftSettings, tokens: int) -> float:
    slope = (settings.max_shift - settings.base_shift) / (
        settings.max_tokens - settings.base_tokens
    )
    return tokens * slope + (settings.base_shift - slope * settings.base_tokens)


def flow_sigmas(steps: int, settings: ShiftSettings, tokens: int) -> Tensor:
    """The noise levels of a generation, from 1 down to 0.

    Args:
        steps: Number of steps, at least 1.
        tokens: Number of image tokens of the image.

    Returns:
        `[steps + 1]`, float32, decreasing; the last one is 0.

    Source: Diffusers, ``FlowMatchEulerDiscreteScheduler.set_timesteps``.
    """
    # Spaced in float64 and rounded once, as numpy's linspace does it there.
    stride = (1.0 / steps - 1.0) / max(steps - 1, 1)
    spaced = [1.0 + index * stride for index in range(steps - 1)] + [1.0 / steps]
    sigmas = torch.tensor(spaced, dtype=torch.float64).to(torch.float32)
    shift = shift_factor(settings, tokens)
    if settings.dynamic:
        # A true division: torch turns number / tensor into number * (1 / tensor), rounded twice.
        sigmas = torch.full_like(sigmas, shift) / (shift + (1 / sigmas - 1))
    else:
        sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
    if settings.terminal and sigmas[-1] < 1:
        distance = 1 - sigmas
        sigmas = 1 - distance / (distance[-1] / (1 - settings.terminal))
    return torch.cat([sigmas, sigmas.new_zeros(1)])
