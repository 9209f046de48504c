"""The layers that an image is made of, in the folder ``layers`` beside its own.

``layers/NAME_0.png``, ``NAME_1.png`` ... are those of ``training_images/NAME.png``, from the lowest
to the topmost, each of the image's size and with an alpha channel. The lowest may do without one:
it may cover everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config import DatasetSection
from ...errors import ConfigError, DatasetError
from ...types import Sample
from ..image import ImageInfo
from .list_files import Listing
from .recognize_layout import LAYERS_FOLDER, TRAINING_FOLDER

BAD_LAYERS = "layers"
"""Layers that do not make up their image; no setting lets a training leave them out."""

EXPECTED_LAYERS = (
    f"for each training image NAME the files {LAYERS_FOLDER}/NAME_0.png, NAME_1.png ... without "
    "gaps, as large as the image and, but for the lowest, with an alpha channel",
    "Rename, add or export the layers again as PNG with transparency, all of the image's size.",
)
"""What should be there, and what to do."""

_LAYER = re.compile(r"^(?P<stem>.+)_(?P<number>\d{1,2})$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """One layer: its place as it is written, its file, and its name for a message."""

    number: int
    path: Path
    shown: str = ""


def layers_by_image(
    layers: Listing, images: Collection[str], report: Callable[[str], None]
) -> dict[str, list[ImageLayer]]:
    """Stem of each image to its layers among the folder's files, from the lowest to the topmost.

    Args:
        images: Stems of the training images, with their folders.
        report: Told of each file that belongs to no image.
    """
    found: dict[str, list[ImageLayer]] = {}
    for file in layers.images:
        match = _LAYER.match(file.key)
        name = f"{LAYERS_FOLDER}/{file.shown}"
        if match is None:
            report(f"the name of {name} does not end in a number, as in NAME_0.png")
        elif match["stem"] not in images:
            report(f"{name} has no training image {match['stem']}")
        else:
            layer = ImageLayer(int(match["number"]), layers.path(file), name)
            found.setdefault(match["stem"], []).append(layer)
    return {stem: sorted(each, key=lambda layer: layer.number) for stem, each in found.items()}


def layers_problem(name: str, layers: Sequence[ImageLayer]) -> str | None:
    """What is wrong with the places of an image's layers; None when they count up from 0 or 1."""
    numbers = [layer.number for layer in layers]
    if not numbers:
        return f"{name} has no layers"
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        return f"{name} has two layers with the number {twice}"
    if numbers[0] > 1:
        return f"the layers of {name} begin at number {numbers[0]}"
    missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
    return f"{name} has no layer number {missing[0]}" if missing else None


def layer_problem(
    name: str, image: tuple[int, int], facts: ImageInfo, *, lowest: bool
) -> str | None:
    """Say why a file cannot be a layer of an image."""
    if (facts.width, facts.height) != image:
        return (
            f"{name} has {facts.width} x {facts.height} pixels, and its training image has "
            f"{image[0]} x {image[1]}"
        )
    return None if facts.alpha or lowest else f"{name} has no alpha channel"


def require_layers(
    samples: Sequence[Sample], settings: DatasetSection, variant: str, variants: Collection[str]
) -> None:
    """Refuse a dataset that the base cannot be trained on.

    Args:
        variants: Those of its family that take images apart into layers.

    Raises:
        ConfigError: When control images are to have a size of their own, which an image with layers
            cannot have.
        DatasetError: When the samples have layers and the base has no use for them, or the other
            way round.
    """
    layered = variant in variants
    if layered and settings.control_area is not None:
        raise ConfigError(
            f"dataset.control_area is {settings.control_area}, and the base's variant is {variant}",
            "an image of its layers' size: it is its own control image",
            "Leave dataset.control_area out.",
        )
    other = next((each for each in samples if bool(each.layers) != layered), None)
    if other is None:
        return
    have = "layers" if other.layers else "no layers"
    raise DatasetError(
        f"{other.name} has {have}, and the base's variant is {variant}",
        "layers for every image" if layered else "images without layers",
        f"Put the images into {TRAINING_FOLDER} and their layers into {LAYERS_FOLDER}, as "
        "NAME_0.png, NAME_1.png ..."
        if layered
        else "Choose a base that takes images apart into layers, or set dataset.layout to flat or "
        "paired.",
    )
