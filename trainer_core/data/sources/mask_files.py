"""Which files are masks, and of which image.

``NAME_mask.png`` beside ``NAME``, or a file of the image's name in a folder ``masks``: beside the
images, at the top of the dataset, or for the paired layout beside ``training_images``. What is a
mask by its name and has its image is never trained as an image itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ...config import DatasetSection
from ...filesystem.allowed_folders import AllowedFolders
from ..masks import same_shape
from .controls import tell_unread
from .layout import MASK_FOLDER
from .listing import ListedFile, Listing, list_folder
from .problems import Problems

_ENDING = "_mask"


@dataclass(frozen=True, slots=True)
class MaskFile:
    """A mask: the file, and its name for a message."""

    path: Path
    shown: str


Masks = dict[str, MaskFile]
"""Key of an image to its mask."""


def masks_beside(listing: Listing, problems: Problems) -> tuple[list[ListedFile], Masks]:
    """Part images from the masks that lie among them.

    Args:
        listing: The folder of the images.
        problems: Told of masks without image, of two masks of one image, and of captions of masks.

    Returns:
        The images that are no masks, and the masks.
    """
    marked = {file: key for file in listing.images if (key := _image_key(file.key)) is not None}
    if not marked:
        return listing.images, {}
    images = [file for file in listing.images if file not in marked]
    keys = {file.key for file in images}
    masks: Masks = {}
    strays: list[ListedFile] = []
    for file, key in marked.items():
        captioned = file.key in listing.captions
        if key in keys:
            _take(masks, key, MaskFile(listing.path(file), file.shown), problems)
            if captioned:
                caption = listing.captions.pop(file.key).shown
                words = "{count} caption(s) of masks are not read: {names}"
                problems.count(words, caption)
        elif captioned or problems.settings.mask.source == "none":
            # A training image that happens to be called so.
            strays.append(file)
        else:
            problems.add("missing_image", f"{file.shown} is a mask without image")
    order = {file: place for place, file in enumerate(listing.images)} if strays else {}
    return sorted(images + strays, key=order.__getitem__) if strays else images, masks


def masks_in_folder(
    root: Path,
    keys: Collection[str],
    masks: Masks,
    problems: Problems,
    within: AllowedFolders | None,
) -> None:
    """Add the masks of the folder ``masks`` beside ``training_images``, where there is one.

    Args:
        root: The dataset's folder.
        keys: Those of the training images.
        masks: Gets them.
        problems: As for `masks_beside`.
        within: As for `list_folder`.
    """
    folder = root / MASK_FOLDER
    if not folder.is_dir():
        return
    listing = list_folder(folder, problems.settings.caption_extension, within)
    for file in listing.images:
        shown = f"{MASK_FOLDER}/{file.shown}"
        key = file.key if file.key in keys else file.key.removesuffix(_ENDING)
        if key in keys:
            _take(masks, key, MaskFile(listing.path(file), shown), problems)
        else:
            problems.add("missing_image", f"{shown} is a mask without image")
    tell_unread(listing, problems, f"{MASK_FOLDER}/", captions=True)


def tell_masks(
    masks: Masks, without: Iterable[str], settings: DatasetSection, problems: Problems
) -> None:
    """Tell of masks that are not read, or of images that have none while others have one.

    Args:
        masks: All that were found.
        without: Names of the samples without mask.
        settings: Those of the folder.
        problems: Told of it.
    """
    source = settings.mask.source
    if source in {"alpha", "none"}:
        words = f"{{count}} mask file(s) are not read (dataset.mask.source: {source}): {{names}}"
        for mask in masks.values():
            problems.count(words, mask.shown)
    if source == "alpha" or (source == "auto" and masks):
        kind = "transparency" if source == "alpha" else "mask"
        words = f"{{count}} image(s) have no {kind}, and count everywhere alike: {{names}}"
        for name in without:
            problems.count(words, name)


def shape_problem(shown: str, image: tuple[int, int], mask: tuple[int, int]) -> str | None:
    """Say that a mask has another shape than its image; None where it has not.

    Args:
        shown: Name of the mask.
        image: Width and height in pixels.
        mask: The same of the mask.
    """
    if same_shape(mask, image):
        return None
    return (
        f"the mask {shown} has {mask[0]} x {mask[1]} pixels, and its image {image[0]} x {image[1]}"
    )


def _image_key(key: str) -> str | None:
    """The key of the image that a file is the mask of by its name; None where it is no mask."""
    if "mask" not in key:
        return None
    folders, _, stem = key.rpartition("/")
    parts = folders.split("/") if folders else []
    if MASK_FOLDER in parts:
        parts.remove(MASK_FOLDER)
        return "/".join([*parts, stem.removesuffix(_ENDING) or stem])
    if stem.endswith(_ENDING) and stem != _ENDING:
        return key.removesuffix(_ENDING)
    return None


def _take(masks: Masks, key: str, mask: MaskFile, problems: Problems) -> None:
    first = masks.setdefault(key, mask)
    if first is not mask:
        problems.tell(f"left out: {mask.shown}, because {first.shown} is a mask of the same image")
