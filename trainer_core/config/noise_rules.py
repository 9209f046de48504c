"""Which settings of schedule, noise levels and loss contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from .sigma import SigmaSection
from .training import TrainingSection


def noise_contradictions(training: TrainingSection) -> Iterator[tuple[str, str, str]]:
    """What was found, what was expected, and what to do, for each of them."""
    schedule, sigma = training.schedule, training.sigma
    if schedule.name == "constant" and schedule.min_ratio != 0.0:
        yield (
            f"training.schedule.min_ratio is set and training.schedule.name is {schedule.name}",
            "min_ratio only with a schedule that falls, such as cosine",
            "Leave training.schedule.min_ratio out, or set training.schedule.name to cosine.",
        )
    if sigma.min >= sigma.max:
        yield (
            f"training.sigma.min is {sigma.min} and training.sigma.max is {sigma.max}",
            "training.sigma.min below training.sigma.max",
            "Lower training.sigma.min, or raise training.sigma.max.",
        )
    yield from _density(sigma)


def _density(sigma: SigmaSection) -> Iterator[tuple[str, str, str]]:
    if sigma.density == "logit_normal" and sigma.shift is not None:
        yield (
            "training.sigma.shift is set and training.sigma.density is logit_normal",
            "a shift with any other density; logit_normal with a shift is called shifted",
            "Leave training.sigma.shift out, or set training.sigma.density to shifted.",
        )
    normal = sigma.density in {"logit_normal", "shifted"}
    if not normal and (sigma.mean, sigma.std) != (0.0, 1.0):
        yield (
            "training.sigma.mean or training.sigma.std is set and training.sigma.density is "
            f"{sigma.density}",
            "mean and std only with density logit_normal or shifted",
            "Leave them out, or change training.sigma.density.",
        )
    if sigma.density != "mode" and sigma.mode_scale != SigmaSection().mode_scale:
        yield (
            f"training.sigma.mode_scale is set and training.sigma.density is {sigma.density}",
            "mode_scale only with density mode",
            "Leave training.sigma.mode_scale out, or set training.sigma.density to mode.",
        )
