"""Which settings of the optimizer contradict each other, or the adapter."""

from __future__ import annotations

from collections.abc import Iterator

from .dialect import value_in_words
from .patterns import PATTERN_EXPECTED, PATTERN_REMEDY, pattern_mistake
from .run import RunConfig


def optimizer_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """What was found, what was expected, and what to do, for each of them."""
    settings, kind = config.training.optimizer, config.adapter.kind
    if settings.lora_plus_ratio != 1.0 and kind != "lora":
        yield (
            f"training.optimizer.lora_plus_ratio is {settings.lora_plus_ratio} and adapter.kind is "
            f"{kind}",
            "LoRA+ only with kind lora: it speaks of the upper and the lower of two factors",
            "Leave lora_plus_ratio out, or set adapter.kind to lora.",
        )
    for pattern in settings.rate_pattern:
        mistake = pattern_mistake(pattern)
        if mistake:
            found = f"training.optimizer.rate_pattern has {value_in_words(pattern)}"
            yield f"{found}, which {mistake}", PATTERN_EXPECTED, PATTERN_REMEDY
    for pattern, rate in settings.rate_pattern.items():
        if rate <= 0:
            yield (
                f"training.optimizer.rate_pattern gives {value_in_words(pattern)} the rate {rate}",
                "multiples of the learning rate above 0",
                "Raise it, or name the layer in adapter.exclude.",
            )
