"""What differs from one optimizer to another, as far as settings go: defaults, and what is read.

Whoever changes ``training.optimizer.name`` and nothing else gets values that suit the optimizer.
docs/optimizers.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BY_OPTIMIZER = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
"""Settings whose default is the optimizer's own."""

_LION = {"learning_rate": 3e-5, "beta2": 0.99, "weight_decay": 0.03}

OWN_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adamw_schedule_free": {"learning_rate": 3e-4},
    "lion": _LION,
    "lion8bit": _LION,
    "lion8bit_paged": _LION,
    "adafactor": {"beta1": 0.0, "eps": 1e-30},
    "prodigy": {"learning_rate": 1.0},
    "prodigy_schedule_free": {"learning_rate": 1.0, "beta2": 0.99, "weight_decay": 0.0},
    "came": {"learning_rate": 3e-5, "eps": 1e-30},
    "muon": {"beta1": 0.95},
    "sgd": {"learning_rate": 0.01, "weight_decay": 0.0},
}
"""Where they are not adamw's."""

UNREAD: Mapping[str, tuple[str, ...]] = {
    "lion": ("eps",),
    "lion8bit": ("eps",),
    "lion8bit_paged": ("eps",),
    "adafactor": ("beta2",),
    "sgd": ("beta2", "eps"),
}
"""Settings that an optimizer has no use for."""

FINDS_ITS_RATE = frozenset({"prodigy", "prodigy_schedule_free"})
"""Optimizers that find the learning rate themselves: the setting is a factor on it, about 1."""

LEAST_FACTOR = 0.01
"""A factor on the rate that is found; what is less was meant as a rate."""

ONE_RATE = frozenset({"prodigy"})
"""Optimizers whose library takes one learning rate for all factors."""

AVERAGES_ITSELF = frozenset({"adamw_schedule_free", "prodigy_schedule_free"})
"""Optimizers that average the factors over the run, in place of a schedule that falls."""

WAITS: Mapping[str, tuple[int, str]] = {
    "adamw_paged": (1, "adamw"),
    "adamw8bit_paged": (1, "adamw8bit"),
    "lion8bit": (1, "lion"),
    "lion8bit_paged": (1, "lion"),
    "prodigy": (2, "prodigy_schedule_free"),
}
"""Optimizers whose library waits for the device at each tensor: how often, and what does not."""


def waits_note(name: str, tensors: int) -> str | None:
    """What a run on an accelerator that trains so many tensors is told; None of most optimizers."""
    if name not in WAITS:
        return None
    times, other = WAITS[name]
    return (
        f"{name} waits for the device {times * tensors} times in a step: the host sends the next "
        f"kernels only after each, which is felt where steps are short. {other} does not wait so."
    )


def with_own_defaults(values: Any) -> Any:
    """Fill in what an optimizer has defaults of its own for, where a run file leaves it out.

    Args:
        values: The raw values of the run file's section; what is no mapping is refused later.
    """
    if not isinstance(values, Mapping):
        return values
    name = values.get("name")
    own = OWN_DEFAULTS.get(name, {}) if isinstance(name, str) else {}
    return {**own, **values}
