"""A distilled base is never trained silently: it is refused, or one line says what will happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config import BaseSection
from ..errors import BaseModelError
from ..weights.base_location import BaseLocation

if TYPE_CHECKING:
    from ..families.family import Family


def refuse_distilled(settings: BaseSection, family: Family, location: BaseLocation) -> None:
    """Refuse a distilled base that nothing in the run file, of whose ``base`` this is, makes right.

    Raises:
        BaseModelError: When it is distilled, has no training adapter, and is not to be trained as
            it is.
    """
    if settings.distilled == "train" or _has_training_adapter(settings):
        return
    advice = family.distilled(location)
    if advice and family.lent is not None:
        raise BaseModelError(
            f"a MODEL of {_name(location)} is distilled, which training would undo",
            "a model that was not distilled, or this one with its training adapter",
            f"{advice} To train it as it is, set base.distilled of Base From Model to train.",
        )
    if advice:
        raise BaseModelError(
            f"base.path: {_name(location)} is distilled, which training would undo",
            "a model that was not distilled, or a training adapter for this one",
            f"{advice} With a training adapter (an adapter file made for it) as base.adapters, "
            "when: training, it trains as it is; base.distilled: train does so without.",
        )


def distilled_note(settings: BaseSection, family: Family, location: BaseLocation) -> str:
    """What will happen to a distilled base in a run, in one line; empty for any other base."""
    advice = family.distilled(location)
    if not advice:
        return ""
    if _has_training_adapter(settings):
        return (
            f"{_name(location)} is distilled: it trains with its training adapter, "
            "which samples and the saved adapter do without."
        )
    return (
        f"{_name(location)} is distilled, and base.distilled is train: the adapter will undo "
        f"some of the distillation, and samples of few steps, or without guidance, blur. {advice}"
    )


def _has_training_adapter(settings: BaseSection) -> bool:
    return any(each.when == "training" and each.strength for each in settings.adapters)


def _name(location: BaseLocation) -> str:
    return str(location.file or location.folder)
