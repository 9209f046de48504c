"""What the number of images decides: steps of epochs, repeats of regularization images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..config.run import RunConfig, nested
from ..errors import TrainerError
from .balanced import Balanced
from .rules import Conversion


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a dataset that is there.

    Attributes:
        steps: As the verb ``dataset`` counts them, at least 1.
        apart: How many they are where no step joins what is left of several sizes.
        images: Folders by their places in `dataset_folders` to their images that are not held out,
            as often as names of folders or metadata repeat them.
    """

    steps: int
    apart: int
    images: Mapping[int, int]


Count = Callable[[RunConfig], Epoch]
"""Counts an epoch of a run; raises `TrainerError` or `OSError` where its dataset is not there."""

_BALANCED = "There images of regularization are repeated until they equal the trained ones."


def say_counted(to: Conversion, count: Count | None) -> None:
    """Turn what a conversion has noted in epochs into steps, and equal regularization images.

    Args:
        to: Gets the settings; its ``epochs`` and ``balanced`` are read.
        count: Counts the dataset; called only where something depends on it.
    """
    found, why = _counted(to, count) if to.balanced else (None, "")
    for each in to.balanced:
        repeats = _balance(each, found) if found else {}
        for place in each.ordinary:
            key = f"{each.key} (repeats of regularization images)"
            if place in repeats:
                entry = to.values["dataset.folders"][place - 1]
                entry["num_repeats"] = repeats[place]
                to.tell("dataset.folders", key, repeats[place], _BALANCED)
            else:
                how = f"Set num_repeats of dataset.folders[{place - 1}] so that they do."
                to.lack(key, each.ordinary[place], " ".join((_BALANCED, how, why)).strip())
    if to.epochs:
        _say_epochs(to, *_counted(to, count))


def _counted(to: Conversion, count: Count | None) -> tuple[Epoch | None, str]:
    """An epoch of the settings as they are; or none, and why."""
    if count is None:
        return None, ""
    try:
        return count(RunConfig.model_validate(nested(to.values))), ""
    except TrainerError as error:
        return None, f"They could not be counted: {error.found}."
    except OSError as error:  # a name may be longer than a file system takes
        return None, f"They could not be counted: {error.strerror}."


def _balance(group: Balanced, epoch: Epoch) -> dict[int, int]:
    """Repeats with which regularization images equal the trained ones; those beyond stay."""
    trained = sum(epoch.images.get(at, 0) * repeats for at, repeats in group.trained.items())
    images = sum(epoch.images.get(at, 0) for at in group.ordinary)
    own = sum(epoch.images.get(at, 0) * repeats for at, repeats in group.ordinary.items())
    if not images or not trained:
        return {}
    more = max(0.0, (trained - own) / images)
    return {at: max(1, round(repeats + more)) for at, repeats in group.ordinary.items()}


def _say_epochs(to: Conversion, epoch: Epoch | None, why: str) -> None:
    for setting, (key, epochs) in to.epochs.items():
        # What is counted in steps there is off where epochs are named.
        defaults = [n for n in to.notes if n.setting == setting and n.outcome == "default"]
        to.notes = [each for each in to.notes if each not in defaults]
        if defaults:
            to.values.pop(setting, None)
        if epoch is None or epochs <= 0:
            how = f"Set {setting}: epochs x images x repeats / samples of a step."
            to.lack(key, f"{epochs:g}", f"{how} {why}".strip())
        else:
            near = f"Steps of an epoch, as this dataset is now: {epoch.steps}."
            if epoch.apart > epoch.steps:
                near += f" With a step for each size apart, as there, they are {epoch.apart}."
            to.say(setting, max(1, round(epochs * epoch.steps)), key, f"{epochs:g}", near)
