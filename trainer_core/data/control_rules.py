"""Which bases need control images, and which can be trained without them now and then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..config import DatasetSection
from ..config.dataset_folders import dataset_folders
from ..errors import ConfigError, DatasetError
from ..types import Sample

_GENERATE = "generate"


def require_control_images(samples: Iterable[Sample], variant: str) -> None:
    """Refuse samples without control images for a base that edits.

    Args:
        samples: What is to be trained.
        variant: The base's variant.

    Raises:
        DatasetError: Naming the first such sample.
    """
    bare = next((each for each in samples if not each.controls), None)
    if variant != _GENERATE and bare is not None:
        raise DatasetError(
            f"{bare.name} has no control image, and the base's variant is {variant}",
            "a control image for each training image",
            "Add control images, or set base.variant: generate. With dataset.control_dropout they "
            "are left out now and then.",
        )


def require_droppable(settings: DatasetSection, variant: str, fixed: Sequence[str]) -> None:
    """Refuse to leave out control images that are not there, or that the base cannot do without.

    Args:
        settings: Of the dataset.
        variant: The base's variant.
        fixed: Variants whose control image is a part of what is generated: the channels of an
            image that is filled, the image that is taken apart into layers.

    Raises:
        ConfigError: When a folder says otherwise.
    """
    for folder in dataset_folders(settings):
        share = folder.settings.control_dropout
        if not share or (variant != _GENERATE and variant not in fixed):
            continue
        name = "dataset.control_dropout"
        if share != settings.control_dropout:
            name = f"{folder.place.removesuffix('.path')}.control_dropout"
        why = (
            "which has no control images to leave out"
            if variant == _GENERATE
            else "which cannot do without its control image"
        )
        raise ConfigError(
            f"{name} is {share}, and the base's variant is {variant}, {why}",
            "control images that are left out only of a base that edits",
            f"Leave {name} out, or choose a base that edits.",
        )
