"""How much each noise level counts: weights of the loss by sigma.

Each is a plain number for each sample, made on the CPU in float64, so that a weighting costs the
device one multiplication of `[B]` and no wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from .noise_bands import band_of
from .parameterization import FLOW, Parameterization

SigmaWeight = Callable[[float], float]
"""A noise level in [0, 1] to the factor on the loss of a sample there, finite and at least 0."""

SMALLEST_SIGMA = 1e-3
"""Below it ``sigma_sqrt`` counts as at it: the smallest level of Diffusers' 1000."""

OF_FLOW = frozenset({"sigma_sqrt", "cosmap", "logit_normal"})
"""Weightings whose formulas are of a velocity on the straight path, and of nothing else."""

BANDS = 10
"""Equal parts of [0, 1] of which ``learned`` keeps a mean each."""

_MEMORY = 100.0
"""Samples of a band that its running mean goes back over; its share of the draws goes back over so
many times `BANDS` samples."""
_PRIOR = 4.0
"""Samples of the mean over all bands that each band's mean begins with; they are forgotten as its
own first samples are."""
_LEAST = 1e-3
"""Share of the mean over all bands below which no band's mean counts, so that weights are bounded.
"""


def make_sigma_weight(
    weighting: str, snr_gamma: float, parameterization: Parameterization = FLOW
) -> SigmaWeight | None:
    """The weight of each noise level, where it follows from a formula.

    Args:
        weighting: ``none``; ``sigma_sqrt``: 1 / sigma², as at `SMALLEST_SIGMA` below it;
            ``cosmap``: 2 / (π (1 - 2 sigma + 2 sigma²)); ``min_snr``: see `min_snr_weight`;
            ``debiased``: 1 / sqrt(SNR) for a predicted noise, 1 / (SNR + 1) for v, with an SNR of
            at most 1000; ``logit_normal``: the density of a number whose logit is standard normal,
            which is 1 on average over uniform sigmas.
        snr_gamma: Of ``min_snr``, above 0.

    Returns:
        The weight; None for ``none``, where every level counts 1.

    Raises:
        ValueError: For any other name, and for one that this parameterization has not.

    Source: Esser et al., Scaling Rectified Flow Transformers (2024), section 3.1, and Diffusers'
    ``compute_loss_weighting_for_sd3``; Yu et al., Debias the Training of Diffusion Models (2023,
    arXiv:2310.08442), for ``debiased``, of v and with that bound as kohya's scripts have it.
    """
    if not has_weighting(weighting, parameterization):
        raise ValueError(f"{parameterization.name} has no weighting {weighting!r}")
    known: dict[str, SigmaWeight | None] = {
        "none": None,
        "sigma_sqrt": lambda sigma: max(sigma, SMALLEST_SIGMA) ** -2,
        "cosmap": lambda sigma: 2 / (math.pi * (1 - 2 * sigma + 2 * sigma**2)),
        "min_snr": lambda sigma: min_snr_weight(sigma, snr_gamma, parameterization),
        "debiased": lambda sigma: parameterization.debiased(sigma) or 0.0,
        "logit_normal": _logit_normal_density,
    }
    if weighting not in known:
        raise ValueError(f"there is no weighting {weighting!r} that is a formula")
    return known[weighting]


def has_weighting(weighting: str, parameterization: Parameterization) -> bool:
    """Whether a weighting has a formula for what is predicted."""
    if weighting == "debiased":
        return parameterization.debiased(0.5) is not None
    return weighting not in OF_FLOW or parameterization.name == "flow"


def min_snr_weight(sigma: float, gamma: float, parameterization: Parameterization = FLOW) -> float:
    """Min-SNR: the squared error of the image weighed by min(SNR, gamma).

    SNR is ((1 - sigma) / sigma)². The image's error is `Parameterization.error_gains` times that of
    what is predicted, and the noise's sqrt(SNR) times the image's. So the weight on the squared
    error of what is predicted is

    * ``min((1 - sigma)², gamma sigma²)`` for the velocity of the straight path;
    * ``min(SNR, gamma) / SNR`` for the noise;
    * ``min(SNR, gamma) / (SNR + 1)`` for v.

    Args:
        sigma: In [0, 1].
        gamma: Above 0.

    Source: Hang et al., Efficient Diffusion Training via Min-SNR Weighting Strategy (2023),
    section 3.4.
    """
    of_noise, of_image = parameterization.error_gains(sigma)
    return min(of_noise**2, gamma * of_image**2)


def _logit_normal_density(sigma: float) -> float:
    # It falls to 0 at both ends faster than their 1 / (sigma (1 - sigma)) grows.
    if not 0.0 < sigma < 1.0:
        return 0.0
    logit = math.log(sigma / (1 - sigma))
    return math.exp(-0.5 * logit**2) / (math.sqrt(2 * math.pi) * sigma * (1 - sigma))


class LearnedWeight:
    """Weighs the noise levels so that bands of them add alike to the loss.

    Each of `BANDS` equal parts of [0, 1] keeps a running mean of its samples' errors, which begins
    as the mean over all. A level's weight is c / (mean of its band), with c such that the weights
    are 1 on average over the levels that are drawn. Until a first step they are 1.

    It is a function of the errors it was given and of their order alone: every process that is
    given the same comes to the same weights.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * BANDS
        self._counts = [0.0] * BANDS
        self._shares = [0.0] * BANDS
        self._weights = [1.0] * BANDS

    def __call__(self, sigma: float) -> float:
        """The weight of a noise level in [0, 1]."""
        return self._weights[band_of(sigma, BANDS)]

    def learn(self, errors: Iterable[tuple[float, float]]) -> None:
        """Take in the samples of a step, in their order.

        Args:
            errors: Sigma and error of each, before any weight; what is not finite is passed over.
        """
        kept = 1 - 1 / _MEMORY
        for sigma, error in errors:
            if not math.isfinite(error):
                continue
            band = band_of(sigma, BANDS)
            self._sums[band] = kept * self._sums[band] + error
            self._counts[band] = kept * self._counts[band] + 1
            self._shares = [(1 - 1 / (BANDS * _MEMORY)) * share for share in self._shares]
            self._shares[band] += 1
        self._weigh()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: float64 tensors `[BANDS]` by name."""
        stored = {"sums": self._sums, "counts": self._counts, "shares": self._shares}
        return {name: torch.tensor(each, dtype=torch.float64) for name, each in stored.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave; of nothing, or of other bands, begin anew."""
        self.__init__()
        if all(len(tensors.get(name, ())) == BANDS for name in self.tensors()):
            self._sums, self._counts, self._shares = (
                tensors[name].tolist() for name in self.tensors()
            )
        self._weigh()

    def _weigh(self) -> None:
        mean = sum(self._sums) / max(sum(self._counts), 1.0)
        if mean <= 0.0:
            self._weights = [1.0] * BANDS
            return
        inverse: list[float] = []
        for total, count in zip(self._sums, self._counts, strict=True):
            prior = _PRIOR * (1 - count / _MEMORY)
            of_band = (total + prior * mean) / (count + prior)
            inverse.append(1 / max(of_band, _LEAST * mean))
        drawn = sum(map(float.__mul__, self._shares, inverse)) / sum(self._shares)
        self._weights = [each / drawn for each in inverse]
