"""Which settings of length, checkpoints, average, recovery, slider and text encoder contradict."""

from __future__ import annotations

from collections.abc import Iterator

from .run import RunConfig


def training_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """What was found, what was expected, and what to do, for each of them."""
    ema = config.training.ema
    if not ema.decay and (ema.previews, ema.export) != ("average", "average"):
        yield (
            "training.ema has settings and its decay is 0, which is off",
            "previews and export only with an average",
            "Set training.ema.decay, such as 0.99, or leave the section out.",
        )
