"""Settings of the optimizer, and what differs from one optimizer to another.

Whoever changes ``training.optimizer.name`` and nothing else gets values that suit the optimizer.
docs/optimizers.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import model_validator

from .patterns import wrong_patterns
from .section import Other, Problem, Section, setting
from .yaml_dialect import value_in_words

OptimizerName = Literal[
    "adamw",
    "adamw8bit",
    "adamw_paged",
    "adamw8bit_paged",
    "adamw4bit",
    "adamw_fp8",
    "adamw_schedule_free",
    "lion",
    "lion8bit",
    "lion8bit_paged",
    "adafactor",
    "prodigy",
    "prodigy_schedule_free",
    "came",
    "muon",
    "sgd",
]

BY_OPTIMIZER = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
"""Settings whose default is the optimizer's own."""

_LIONS = ("lion", "lion8bit", "lion8bit_paged")

_LION = {"learning_rate": 3e-5, "beta2": 0.99, "weight_decay": 0.03}

OWN_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adamw_schedule_free": {"learning_rate": 3e-4},
    **dict.fromkeys(_LIONS, _LION),
    "adafactor": {"beta1": 0.0, "eps": 1e-30},
    "prodigy": {"learning_rate": 1.0},
    "prodigy_schedule_free": {"learning_rate": 1.0, "beta2": 0.99, "weight_decay": 0.0},
    "came": {"learning_rate": 3e-5, "eps": 1e-30},
    "muon": {"beta1": 0.95},
    "sgd": {"learning_rate": 0.01, "weight_decay": 0.0},
}
"""Where they are not adamw's."""

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

_ONE_RATE = Other(
    "name",
    *ONE_RATE,
    such_as="prodigy_schedule_free",
    because="this optimizer needs one learning rate for all factors",
)


class OptimizerSection(Section):
    """How gradients become updates."""

    name: OptimizerName = setting(
        "adamw",
        "Take adamw8bit when VRAM is short (10 bytes of memory for a trained number instead of "
        "16), prodigy to have the learning rate found by itself, else leave it. Rate, betas, eps "
        "and decay that you leave out suit the optimizer. Some need adapter-trainer[optimizers].",
    )
    learning_rate: float = setting(
        1e-4,
        "Lower it when previews fall apart; raise it when they hardly change. 1e-4 suits every "
        "kind but oft with adamw, and 1e-2 the embedded base; lion takes 3e-5, the prodigies 1. "
        "Highest learning rate of the run: how far each step goes.",
        gt=0.0,
        le=10.0,
    )
    beta1: float = setting(
        0.9,
        "Leave it unless a recipe names another value. Decay of the mean gradient.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    beta2: float = setting(
        0.999,
        "Leave it unless a recipe names another value. Decay of the mean squared gradient.",
        advanced=True,
        ge=0.0,
        lt=1.0,
        not_with=Other("name", "adafactor", "sgd", because="this optimizer has no use for it"),
    )
    eps: float = setting(
        1e-8,
        "Leave it unless a recipe names another value. Added to the denominator of an update.",
        advanced=True,
        gt=0.0,
        le=1.0,
        not_with=Other("name", *_LIONS, "sgd", because="this optimizer has no use for it"),
    )
    weight_decay: float = setting(
        0.01,
        "Leave it; raise it when a long run makes the adapter too strong. Decoupled decay of the "
        "adapter's weights; DoRA's magnitudes do not decay.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
    decay_pattern: dict[str, float] = setting(
        {},
        "Leave it empty unless some layers should be held back more or less than others. Another "
        "decay for layers that match: regular expression to a multiple of weight_decay.",
        advanced=True,
        only_with=Other("weight_decay", because="the pattern multiplies it"),
    )
    lora_plus_ratio: float = setting(
        1.0,
        "Leave it at 1; raise it to let a lora learn faster. The paper takes 16. LoRA+: learning "
        "rate of the upper factor over that of the lower one; kind lora only.",
        advanced=True,
        ge=1.0,
        le=1000.0,
        only_with=Other(
            "adapter.kind", "lora", because="LoRA+ speaks of the upper and the lower of two factors"
        ),
        not_with=_ONE_RATE,
    )
    rate_pattern: dict[str, float] = setting(
        {},
        "Leave it empty unless some layers should learn faster or slower than others. Another "
        "learning rate for layers that match: regular expression to a multiple of learning_rate.",
        advanced=True,
        not_with=_ONE_RATE,
    )
    magnitude_ratio: float = setting(
        1.0,
        "Leave it at 1; lower it when a dora changes contrast or color before it learns the "
        "subject. Learning rate of DoRA's magnitudes over that of the other factors.",
        advanced=True,
        gt=0.0,
        le=1000.0,
        only_with=Other("adapter.dora", because="DoRA alone has magnitudes"),
        not_with=_ONE_RATE,
    )

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        name = values.get("name")
        own = OWN_DEFAULTS.get(name, {}) if isinstance(name, str) else {}
        return {**own, **values}

    def usual(self, name: str) -> Any:
        """A setting's value where the run file leaves it out: the optimizer's own."""
        return OWN_DEFAULTS.get(self.name, {}).get(name, super().usual(name))

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields."""
        yield from wrong_patterns("training.optimizer.rate_pattern", self.rate_pattern)
        yield from wrong_patterns("training.optimizer.decay_pattern", self.decay_pattern)
        for pattern, value in self.rate_pattern.items():
            if value <= 0:
                yield Problem(
                    f"training.optimizer.rate_pattern gives {value_in_words(pattern)} the rate "
                    f"{value}",
                    "multiples of the learning rate above 0",
                    "Raise it, or name the layer in adapter.exclude.",
                )
        for pattern, value in self.decay_pattern.items():
            if value < 0:
                yield Problem(
                    f"training.optimizer.decay_pattern gives {value_in_words(pattern)} the decay "
                    f"{value}",
                    "multiples of weight_decay, 0 or more",
                    "Set 0 for layers that should not decay.",
                )
        name = self.name
        if name in FINDS_ITS_RATE and self.learning_rate < LEAST_FACTOR:
            yield Problem(
                f"training.optimizer.learning_rate is {self.learning_rate} and "
                f"training.optimizer.name is {name}",
                f"about 1: {name} finds the learning rate itself, and multiplies it by this",
                "Leave learning_rate out.",
            )
        if name in AVERAGES_ITSELF and not self.beta1:
            yield Problem(
                f"training.optimizer.beta1 is 0 and training.optimizer.name is {name}",
                f"a beta1 above 0: by it {name} goes from the weights that it trains to their "
                "average",
                "Leave beta1 out.",
            )


def waits_note(name: str, tensors: int) -> str | None:
    """What a run on an accelerator that trains so many tensors is told; None of most optimizers."""
    if name not in WAITS:
        return None
    times, other = WAITS[name]
    return (
        f"{name} waits for the device {times * tensors} times in a step: the host sends the next "
        f"kernels only after each, which is felt where steps are short. {other} does not wait so."
    )
