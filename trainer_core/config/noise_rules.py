"""Which settings of schedule, noise levels and loss contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .schedule import ScheduleSection
from .section import Section
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
    yield from _schedule(schedule)
    if sigma.min >= sigma.max:
        yield (
            f"training.sigma.min is {sigma.min} and training.sigma.max is {sigma.max}",
            "training.sigma.min below training.sigma.max",
            "Lower training.sigma.min, or raise training.sigma.max.",
        )
    yield from _density(sigma)


_OF_ONE = {
    "cycles": "cosine_restarts",
    "power": "polynomial",
    "decay_share": "warmup_stable_decay",
}
"""Settings of a schedule that one name alone reads."""


def _schedule(schedule: ScheduleSection) -> Iterator[tuple[str, str, str]]:
    if schedule.warmup_steps and schedule.warmup_share:
        yield (
            f"training.schedule.warmup_steps is {schedule.warmup_steps} and "
            f"training.schedule.warmup_share is {schedule.warmup_share}",
            "one of them: both say how long the learning rate rises",
            "Leave one of the two out.",
        )
    yield from _unread("training.schedule", schedule, "name", _OF_ONE)


def _unread(
    path: str, section: Section, chosen: str, owners: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Settings that are set and belong to another choice than the one that was made."""
    defaults, found = type(section)(), getattr(section, chosen)
    for name, owner in owners.items():
        if found != owner and getattr(section, name) != getattr(defaults, name):
            yield (
                f"{path}.{name} is set and {path}.{chosen} is {found}",
                f"{name} only with {chosen} {owner}",
                f"Leave {path}.{name} out, or set {path}.{chosen} to {owner}.",
            )


def _density(sigma: SigmaSection) -> Iterator[tuple[str, str, str]]:
    normal = sigma.density in {"logit_normal", "shifted"}
    if not normal and (sigma.mean, sigma.std) != (0.0, 1.0):
        yield (
            "training.sigma.mean or training.sigma.std is set and training.sigma.density is "
            f"{sigma.density}",
            "mean and std only with density logit_normal or shifted",
            "Leave them out, or change training.sigma.density.",
        )
    yield from _unread(
        "training.sigma", sigma, "density", {"mode_scale": "mode", "alpha": "beta", "beta": "beta"}
    )
