"""Which files are masks, and of which image.

``NAME_mask.png`` or OneTrainer's ``NAME-masklabel.png`` beside ``NAME``, or a file of the image's
name in a folder ``masks``: beside the images, at the top of the dataset, or for the paired layout
beside ``training_images``; or in ``dataset.mask_folder``. What is a mask by its name and has its
image is never trained as an image itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ...filesystem.allowed_folders import AllowedFolders
from ...filesystem.file_names import CLIP_EXTENSIONS
from ..image import ImageInfo, turned_note
from ..masks import same_shape
from .folder_problems import BAD_MASK, Problems
from .list_files import ListedFile, Listing, keys_by_name, list_folder
from .recognize_layout import MASK_FOLDER

_ONE_TRAINER, _CONDITION = "-masklabel", "-condlabel"
"""What names of OneTrainer's masks and condition images end in."""

_MASK_ENDINGS = ("_mask", _ONE_TRAINER)


@dataclass(frozen=True, slots=True)
class MaskFile:
    """A mask: the file, and its name for a message."""

    path: Path
    shown: str


Masks = dict[str, MaskFile]
"""Key of an image to its mask."""


def masked_image(key: str) -> str | None:
    """The key of the image that a file is the mask of by its name; None where it is not a mask."""
    if "mask" not in key:
        return None
    folders, _, stem = key.rpartition("/")
    image = next((stem[: -len(end)] for end in _MASK_ENDINGS if stem.endswith(end)), stem) or stem
    parts = folders.split("/") if folders else []
    if MASK_FOLDER in parts:
        parts.remove(MASK_FOLDER)
    elif image == stem:
        return None
    return "/".join([*parts, image])


def masks_beside(listing: Listing, problems: Problems) -> tuple[list[ListedFile], Masks]:
    """Part images from the masks that lie among them.

    Args:
        problems: Told of masks without image, of two masks of one image, and of captions of masks.
    """
    found = [file for file in listing.images if not file.key.endswith(_CONDITION)]
    for file in listing.images if len(found) < len(listing.images) else ():
        if file.key.endswith(_CONDITION):
            words = "{count} file(s) are not trained (made by OneTrainer: condition image): {names}"
            problems.count(words, file.shown)
    marked = {file: key for file in found if (key := masked_image(file.key)) is not None}
    if not marked:
        return found, {}
    images = [file for file in found if file not in marked]
    # What is left out itself needs no word about its mask.
    keys = {file.key for file in (*images, *listing.clips)}
    masks: Masks = {}
    strays: list[ListedFile] = []
    for file, key in marked.items():
        captioned = file.key in listing.captions
        foreign = file.key.endswith(_ONE_TRAINER)
        if foreign:
            problems.count("{count} mask(s) made by OneTrainer: {names}", file.shown)
        if key in keys:
            take_mask(masks, key, MaskFile(listing.path(file), file.shown), problems)
            if captioned:
                caption = listing.captions.pop(file.key).shown
                words = "{count} caption(s) of masks are not read: {names}"
                problems.count(words, caption)
        elif not foreign and (captioned or problems.settings.mask.source == "none"):
            # A training image that happens to be called so.
            strays.append(file)
        else:
            problems.add("missing_image", f"{file.shown} is a mask without image")
    order = {file: place for place, file in enumerate(found)} if strays else {}
    return sorted(images + strays, key=order.__getitem__) if strays else images, masks


def masks_in_folder(
    folder: Path,
    keys: Collection[str],
    masks: Masks,
    problems: Problems,
    within: AllowedFolders | None,
    without: Collection[Path],
    *,
    clips: bool = False,
) -> None:
    """Add the masks of ``dataset.mask_folder``, or of ``masks`` beside ``training_images``."""
    if not folder.is_dir():
        return
    captions = problems.settings.caption_extension
    listing = list_folder(folder, captions, within, without=without, clips=clips)
    by_name = keys_by_name(keys)
    for file in listing.images:
        shown = f"{folder.name}/{file.shown}"
        key = file.key if file.key in keys else masked_image(file.key) or file.key
        found = [key] if key in keys else by_name.get(key, [])
        for each in found:
            take_mask(masks, each, MaskFile(listing.path(file), shown), problems)
        if not found:
            problems.add("missing_image", f"{shown} is a mask without image")
    problems.tell_unread(listing, f"{folder.name}/", captions=True)


def tell_masks(masks: Masks, without: Iterable[str], problems: Problems) -> None:
    """Tell of masks that are not read, or of images that have none while others have one."""
    source = problems.settings.mask.source
    if source in {"alpha", "none"}:
        words = f"{{count}} mask file(s) are not read (dataset.mask.source: {source}): {{names}}"
        for mask in masks.values():
            problems.count(words, mask.shown)
    tell_without_mask(without, problems, masked=bool(masks))


def tell_without_mask(without: Iterable[str], problems: Problems, *, masked: bool) -> None:
    """Tell of images that have no mask while others have one."""
    source = problems.settings.mask.source
    if source == "alpha" or (source == "auto" and masked):
        kind = "transparency" if source == "alpha" else "mask"
        words = f"{{count}} image(s) have no {kind}, and count everywhere alike: {{names}}"
        for name in without:
            problems.count(words, name)


def of_its_shape(
    named: str, mask: ImageInfo, path: Path, image: ImageInfo, problems: Problems
) -> bool:
    """Whether a mask has the shape of its image, at ``path``; else that is told, as ``named``."""
    size = mask.width, mask.height
    if same_shape(size, (image.width, image.height)):
        return True
    turned = "" if path.suffix.lower() in CLIP_EXTENSIONS else turned_note(path, size)
    sizes = f"{size[0]} x {size[1]} pixels, and its image {image.width} x {image.height}{turned}"
    problems.add(BAD_MASK, f"{named} has {sizes}", path)
    return False


def take_mask(masks: Masks, key: str, mask: MaskFile, problems: Problems) -> None:
    """Add the mask of an image, unless it has another one already."""
    first = masks.setdefault(key, mask)
    if first is not mask:
        problems.tell(f"left out: {mask.shown}, because {first.shown} is a mask of the same image")
