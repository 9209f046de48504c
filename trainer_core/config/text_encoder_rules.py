"""Which settings of a trained text encoder contradict others."""

from __future__ import annotations

from collections.abc import Iterator

from .optimizer_facts import FINDS_ITS_RATE, LEAST_FACTOR, ONE_RATE
from .run import RunConfig
from .text_encoder import TextEncoderSection

_SECTION = "training.text_encoder"

_HOLDS = ("comfyui", "kohya", "diffusers")
"""Layouts that have names for a text encoder's layers."""


def text_encoder_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """What was found, what was expected, and what to do, for each of them."""
    settings, name = config.training.text_encoder, config.training.optimizer.name
    if not settings.train:
        yield from _unused(settings)
        return
    if name in ONE_RATE:
        yield (
            f"{_SECTION}.train is true and training.optimizer.name is {name}",
            f"one learning rate for all factors, as {name} needs it: the text encoder has its own",
            "Take prodigy_schedule_free or adamw, or leave train out.",
        )
    rate = settings.learning_rate
    if name in FINDS_ITS_RATE and rate is not None and rate < LEAST_FACTOR:
        yield (
            f"{_SECTION}.learning_rate is {rate} and training.optimizer.name is {name}",
            f"about 0.1: {name} finds the learning rate itself, and multiplies it by this",
            "Leave learning_rate out.",
        )
    if config.adapter.dora and config.adapter.dora_axis == "output":
        yield (
            f"{_SECTION}.train is true and adapter.dora_axis is output",
            "DoRA of the input axis: no layout of checkpoints holds the other with a text encoder",
            "Leave adapter.dora_axis out, or leave train out.",
        )
    for layout in config.output.layouts:
        if layout not in _HOLDS:
            yield (
                f"{_SECTION}.train is true and output.layouts has {layout}",
                f"layouts that hold a text encoder too: {', '.join(_HOLDS)}",
                f"Take {layout} out of output.layouts, or leave train out.",
            )


def _unused(settings: TextEncoderSection) -> Iterator[tuple[str, str, str]]:
    for name in ("learning_rate", "rank"):
        value = getattr(settings, name)
        if value != getattr(TextEncoderSection(), name):
            yield (
                f"{_SECTION}.{name} is {value} and {_SECTION}.train is false",
                f"{name} only with a text encoder that is trained",
                f"Set {_SECTION}.train to true, or leave {name} out.",
            )
