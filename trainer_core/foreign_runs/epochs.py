"""Lengths in epochs of another program as steps here, where its dataset is there to be counted."""

from __future__ import annotations

from collections.abc import Callable

from ..config import RunConfig
from .rules import Conversion

CountSteps = Callable[[RunConfig], int | None]
"""Steps of an epoch of a run; None where its dataset is not there."""


def say_epochs(to: Conversion, config: RunConfig, count: CountSteps) -> None:
    """Turn what a conversion has noted in epochs into steps.

    Args:
        to: Gets the settings; its `Conversion.epochs` are read.
        config: Its settings as they are without them.
        count: Counts the dataset; called once, and not where nothing is in epochs.
    """
    steps = count(config) if to.epochs else None
    for setting, (key, epochs) in to.epochs.items():
        if steps is None or epochs <= 0:
            why = f"Set {setting}: epochs x images x repeats / samples of a step."
            to.lack(key, f"{epochs:g}", why)
        else:
            to.notes = [
                each for each in to.notes if each.setting != setting or each.outcome != "default"
            ]
            near = f"Steps of an epoch, as this dataset is now: {steps}."
            to.say(setting, max(1, round(epochs * steps)), key, f"{epochs:g}", near)
