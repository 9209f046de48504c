"""Which settings of the optimizer contradict each other, or the adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .dialect import value_in_words
from .optimizer import OptimizerSection
from .optimizer_facts import AVERAGES_ITSELF, FINDS_ITS_RATE, LEAST_FACTOR, ONE_RATE, UNREAD
from .patterns import PATTERN_EXPECTED, PATTERN_REMEDY, pattern_mistake
from .run import RunConfig

_SECTION = "training.optimizer"

Contradiction = tuple[str, str, str]


def optimizer_contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """What was found, what was expected, and what to do, for each of them."""
    settings = config.training.optimizer
    yield from _of_the_adapter(config)
    yield from _wrong_patterns("rate_pattern", settings.rate_pattern)
    yield from _wrong_patterns("decay_pattern", settings.decay_pattern)
    if settings.decay_pattern and not settings.weight_decay:
        yield (
            f"{_SECTION}.decay_pattern, and {_SECTION}.weight_decay is 0",
            "a weight_decay above 0, which the pattern multiplies",
            "Set weight_decay, or leave decay_pattern out.",
        )
    yield from _unread(settings)
    yield from _rates(settings)
    if settings.name in AVERAGES_ITSELF:
        yield from _averages(config)


def _of_the_adapter(config: RunConfig) -> Iterator[Contradiction]:
    settings, kind = config.training.optimizer, config.adapter.kind
    if settings.lora_plus_ratio != 1.0 and kind != "lora":
        yield (
            f"{_SECTION}.lora_plus_ratio is {settings.lora_plus_ratio} and adapter.kind is {kind}",
            "LoRA+ only with kind lora: it speaks of the upper and the lower of two factors",
            "Leave lora_plus_ratio out, or set adapter.kind to lora.",
        )
    if settings.magnitude_ratio != 1.0 and not config.adapter.dora:
        yield (
            f"{_SECTION}.magnitude_ratio is {settings.magnitude_ratio} and adapter.dora is false",
            "magnitude_ratio only with DoRA, which alone has magnitudes",
            "Leave magnitude_ratio out, or set adapter.dora to true.",
        )


def _wrong_patterns(name: str, patterns: Mapping[str, float]) -> Iterator[Contradiction]:
    for pattern, value in patterns.items():
        mistake = pattern_mistake(pattern)
        if mistake:
            found = f"{_SECTION}.{name} has {value_in_words(pattern)}"
            yield f"{found}, which {mistake}", PATTERN_EXPECTED, PATTERN_REMEDY
        elif name == "rate_pattern" and value <= 0:
            yield (
                f"{_SECTION}.{name} gives {value_in_words(pattern)} the rate {value}",
                "multiples of the learning rate above 0",
                "Raise it, or name the layer in adapter.exclude.",
            )
        elif value < 0:
            yield (
                f"{_SECTION}.{name} gives {value_in_words(pattern)} the decay {value}",
                "multiples of weight_decay, 0 or more",
                "Set 0 for layers that should not decay.",
            )


def _unread(settings: OptimizerSection) -> Iterator[Contradiction]:
    own = OptimizerSection.model_validate({"name": settings.name})
    for name in UNREAD.get(settings.name, ()):
        value = getattr(settings, name)
        if value != getattr(own, name):
            yield (
                f"{_SECTION}.{name} is {value} and {_SECTION}.name is {settings.name}",
                f"no {name}: {settings.name} has no use for it",
                f"Leave {name} out.",
            )


def _rates(settings: OptimizerSection) -> Iterator[Contradiction]:
    if settings.name in FINDS_ITS_RATE and settings.learning_rate < LEAST_FACTOR:
        yield (
            f"{_SECTION}.learning_rate is {settings.learning_rate} and {_SECTION}.name is "
            f"{settings.name}",
            f"about 1: {settings.name} finds the learning rate itself, and multiplies it by this",
            "Leave learning_rate out.",
        )
    if settings.name in ONE_RATE:
        others = {"lora_plus_ratio": 1.0, "magnitude_ratio": 1.0, "rate_pattern": {}}
        for name, none in others.items():
            if getattr(settings, name) != none:
                yield (
                    f"{_SECTION}.{name}, and {_SECTION}.name is {settings.name}",
                    f"one learning rate for all factors, as {settings.name} needs it",
                    f"Leave {name} out, or take prodigy_schedule_free or adamw.",
                )


def _averages(config: RunConfig) -> Iterator[Contradiction]:
    training = config.training
    settings, name = training.optimizer, training.optimizer.name
    if training.schedule.name != "constant":
        yield (
            f"training.schedule.name is {training.schedule.name} and {_SECTION}.name is {name}",
            f"the schedule constant, with or without a warm-up: {name} averages the weights in "
            "place of a rate that falls",
            "Set training.schedule.name to constant, or choose another optimizer.",
        )
    if not settings.beta1:
        yield (
            f"{_SECTION}.beta1 is 0 and {_SECTION}.name is {name}",
            f"a beta1 above 0: by it {name} goes from the weights that it trains to their average",
            "Leave beta1 out.",
        )
