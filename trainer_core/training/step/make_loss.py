"""A run's loss by its settings: kind, weight of each noise level, and the noises of an image."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from ...config import LossSection, RunConfig
from ...diffusion.losses import FlowLoss
from ...diffusion.parameterization import FLOW, Parameterization
from ...diffusion.weighting import LearnedWeight, SigmaWeight, has_weighting, make_sigma_weight
from ...errors import ConfigError
from ...types import Batch


def make_loss(settings: LossSection) -> FlowLoss:
    """The loss of ``training.loss``."""
    return FlowLoss(
        settings.kind,
        settings.huber_delta,
        settings.huber_schedule == "sigma",
        settings.differential_guidance,
    )


def make_learned(settings: LossSection) -> LearnedWeight | None:
    """The initial state of ``training.loss.weighting: learned``; None for any other."""
    return LearnedWeight() if settings.weighting == "learned" else None


def require_weighting(settings: LossSection, parameterization: Parameterization) -> None:
    """Refuse a weighting that what the base predicts has no formula for.

    Raises:
        ConfigError: As the name says.
    """
    if has_weighting(settings.weighting, parameterization):
        return
    others = ("min_snr", "debiased", "learned")
    known = ", ".join(each for each in others if has_weighting(each, parameterization))
    raise ConfigError(
        f"training.loss.weighting is {settings.weighting}, and the base predicts "
        f"{_PREDICTED[parameterization.name]}",
        f"a weighting for that: none, {known}",
        "Choose one of these as training.loss.weighting, or leave it out.",
    )


_PREDICTED = {
    "flow": "the velocity of flow matching",
    "eps": "the noise (eps)",
    "v": "v",
    "edm": "the F of EDM",
}


def make_weighting(
    settings: LossSection, learned: LearnedWeight | None, parameterization: Parameterization = FLOW
) -> SigmaWeight | None:
    """How much each noise level counts; None where all count alike.

    Args:
        learned: What `make_learned` gave, and the run keeps.
    """
    key = (settings.weighting, settings.snr_gamma, parameterization)
    return learned or make_sigma_weight(*key)


def strength_signs(config: RunConfig) -> int:
    """How many signs of the adapter's strength train each noisy sample: of a slider both."""
    return 2 if config.dataset.slider.is_on else 1


def times_trained(config: RunConfig) -> int:
    """How often each sample is trained in its step: with each of its noises, in each way."""
    return config.training.noises_per_latent * strength_signs(config)


def passes_of_step(config: RunConfig) -> int:
    """Micro-batches of a step, of all processes: what is accumulated, as often as it is trained."""
    return config.training.gradient_accumulation_steps * times_trained(config)


def with_noises(
    load: Callable[[int, int], Batch | None], times: int
) -> Callable[[int, int], Batch | None]:
    """Read each pass once, and give it as often as it is trained with positions of its own.

    Sigma and noise are drawn by position or turn, of which each noise has its own; those of one
    noise are the plan's.
    """
    if times == 1:
        return load
    read = functools.lru_cache(maxsize=1)(load)

    def again(step: int, micro: int) -> Batch | None:
        which, turn = divmod(micro, times)
        batch = read(step, which)
        if batch is None:
            return None
        return at_noise(batch, times, turn)

    return again


def at_noise(batch: Batch, times: int, turn: int) -> Batch:
    """The samples of a batch with the positions of one of the times that they are trained."""
    places = tuple(position * times + turn for position in batch.positions)
    turns = tuple(each and each._replace(turn=each.turn * times + turn) for each in batch.turns)
    return replace(batch, positions=places, turns=turns)
