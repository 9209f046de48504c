"""From a dataset folder of any layout (`recognize_layout`) to samples and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...config import DatasetSection
from ...errors import DatasetError
from ...filesystem.allowed_folders import AllowedFolders
from ...printable import listed
from ...types import FrameGrid
from ..file_memory import FileMemory
from ..image_decoders import READABLE_IMAGES
from .clip_files import ClipFiles
from .control_files import controls_beside, controls_in_folders, folders_of_pairs
from .folder_problems import ONLY_CLIPS, SHOWN, Problems, Scan
from .folder_samples import Reader
from .image_choices import read_choices
from .kohya_folders import repeated_folders, tell_unused_numbers
from .layer_files import BAD_LAYERS, ImageLayer, layers_by_image
from .list_files import ListedFile, Listing, dataset_root, list_folder
from .mask_files import masks_beside, masks_in_folder, take_mask, tell_masks
from .metadata_samples import survey_metadata
from .recognize_layout import (
    CONTROL_FOLDER,
    LAYERS_FOLDER,
    MASK_FOLDER,
    TRAINING_FOLDER,
    control_folders,
    dataset_layout,
    looks_like_kohya,
    refuse_images_inside,
    training_folder,
)

_IN_A_FOLDER = ("paired", "layered")
"""Layouts whose images lie in a folder of their own."""


def scan(
    settings: DatasetSection,
    within: AllowedFolders | None = None,
    *,
    stop: bool = True,
    remembered: FileMemory | None = None,
    grid: FrameGrid | None = None,
) -> Scan:
    """Read a dataset folder: names, headers and captions; no pixel is decoded.

    Args:
        settings: Where the folder is, its layout, and what to do about mistakes.
        within: What everything that is read really has to lie in; None follows every link. Where
            a graph may have named the folder, it has to be given.
        stop: Whether to stop where a policy says so; else what it is about is left out, and the
            result says that.
        remembered: What is known of images' headers already; those that it knows are not opened.
        grid: Lengths of the clips that the base trains; None where it trains images alone.

    Raises:
        DatasetError: When the folder is missing or empty, a policy says to stop, or nothing is
            left to train.
    """
    found = survey(settings, within, remembered=remembered, grid=grid)
    if found.refusal is not None and (stop or not found.samples):
        raise found.refusal
    if not found.samples:
        raise _nothing_left(settings, found.problems)
    return found


def survey(
    settings: DatasetSection,
    within: AllowedFolders | None = None,
    *,
    remembered: FileMemory | None = None,
    grid: FrameGrid | None = None,
) -> Scan:
    """Read a dataset folder as `scan` does, and give also what that would refuse: no sample at all.

    Raises:
        DatasetError: When the folder is missing, or cannot be read.
    """
    root = dataset_root(settings.path)
    found = survey_metadata(root, settings, within, remembered=remembered, grid=grid)
    if found is not None:
        _refuse_folders_beside_metadata(settings)
        return found
    problems = Problems(settings)
    layout = dataset_layout(root, settings)
    prefix = f"{training_folder(root, layout)}/" if layout in _IN_A_FOLDER else ""
    controls, mask_folder = _folders_elsewhere(root / prefix, settings, within)
    listing = list_folder(
        root / prefix,
        settings.caption_extension,
        within,
        subfolders=settings.subfolders,
        without=(*controls, *mask_folder),
        clips=grid is not None,
    )
    images, beside = masks_beside(listing, problems)
    if listing.clips and not images:
        names = listed([file.shown for file in listing.clips], SHOWN)
        problems.add(ONLY_CLIPS, f"{listing.folder} holds clips and no images: {names}")
    masks = {} if mask_folder else dict(beside)
    without = [root / prefix, *controls]
    for folder in mask_folder or ([root / MASK_FOLDER] if prefix else []):
        keys = {file.key for file in (*images, *listing.clips)}
        masks_in_folder(
            folder,
            keys,
            masks,
            problems=problems,
            within=within,
            without=without,
            clips=listing.with_clips,
        )
    for key, mask in beside.items():
        take_mask(masks, key, mask, problems)
    clips = ClipFiles(problems, grid, remembered)
    reader = Reader(listing, prefix, settings, problems=problems, clips=clips, masks=masks)
    reader.choices = read_choices(root, within)
    if layout == "layered":
        reader.layers = _layers_in_folder(root, listing, problems, within)
    elif controls or layout == "paired":
        folders = controls or [root / name for name in control_folders(root)]
        reader.controls = controls_in_folders(
            folders, listing, masks, problems=problems, within=within
        )
        reader.expects_controls = True
        images = _repeated(settings, layout, reader, images) if controls else images
    else:
        images, reader.controls = controls_beside(images, listing, problems)
        reader.expects_controls = bool(reader.controls)
        images = _repeated(settings, layout, reader, images)
        if not reader.expects_controls and settings.layout == "auto":
            reader.pairs = _tell_pairs(listing, images, problems)
    problems.tell_unread(listing, prefix)
    _tell_alike(listing, images, problems, prefix)
    samples = [sample for file in images for sample in reader.samples(file)]
    tell_masks(masks, reader.without_mask, problems)
    _find_lonely_captions(listing, problems, prefix)
    return problems.scan(samples)


def _folders_elsewhere(
    images: Path, settings: DatasetSection, within: AllowedFolders | None
) -> tuple[list[Path], list[Path]]:
    """``dataset.control_folders`` and ``dataset.mask_folder``.

    Raises:
        DatasetError: When one of them is missing, or is read for something else already.
    """
    found: dict[str, list[Path]] = {"control_folders": [], "mask_folder": []}
    named = [("control_folders", name) for name in settings.control_folders]
    named += [("mask_folder", settings.mask_folder)] if settings.mask_folder else []
    read = {os.path.realpath(images)}
    for setting, name in named:
        folder = Path(name).expanduser()
        if within is not None:
            within.require(folder, f"dataset.{setting}", DatasetError)
        if os.path.realpath(folder) in read:
            raise DatasetError(
                f"dataset.{setting}: {folder} is the folder of the images, or named twice",
                "a folder of its own for each kind of image",
                f"Correct dataset.{setting}, or leave it out.",
            )
        read.add(os.path.realpath(folder))
        if not folder.is_dir():
            raise DatasetError(
                f"dataset.{setting}: {folder} is not a folder",
                "a folder of images that have the names of the training images",
                f"Correct dataset.{setting}, or leave it out.",
            )
        found[setting].append(folder)
    return found["control_folders"], found["mask_folder"]


def _refuse_folders_beside_metadata(settings: DatasetSection) -> None:
    for setting in ("control_folders", "mask_folder"):
        if getattr(settings, setting):
            raise DatasetError(
                f"dataset.{setting} is set, and a metadata file lists the images",
                "control images and masks in the columns of that file",
                f"Leave dataset.{setting} out, or set dataset.layout: flat.",
            )


def _repeated(
    settings: DatasetSection, layout: str, reader: Reader, images: list[ListedFile]
) -> list[ListedFile]:
    """Read repeats from the folders' names where the layout has them."""
    if layout != "kohya" and (settings.layout != "auto" or not looks_like_kohya(images)):
        if settings.layout == "auto":
            tell_unused_numbers(images, reader.problems)
        return images
    images, reader.repeats = repeated_folders(reader.listing, images, reader.problems)
    return images


def _tell_pairs(
    listing: Listing, images: Iterable[ListedFile], problems: Problems
) -> dict[str, str]:
    """Tell of folders that look like control images; gives each with what to do about it."""
    cures: dict[str, str] = {}
    for folder, other in sorted(folders_of_pairs(images, listing).items()):
        cures[folder] = (
            f"If {folder}/ holds control images, as datasets of ai-toolkit and FlyMyAI have them, "
            f"set dataset.control_folders: [{listing.folder / folder}], or call the folders "
            f"{TRAINING_FOLDER} and {CONTROL_FOLDER}."
        )
        problems.tell(
            f"the images of {folder}/ have no captions and the names of captioned ones in "
            f"{f'{other}/' if other else 'the dataset itself'}. {cures[folder]}"
        )
    return cures


def _layers_in_folder(
    root: Path, images: Listing, problems: Problems, within: AllowedFolders | None
) -> dict[str, list[ImageLayer]]:
    listing = list_folder(root / LAYERS_FOLDER, problems.settings.caption_extension, within)
    problems.tell_unread(listing, f"{LAYERS_FOLDER}/", captions=True)
    keys = {file.key for file in images.images}
    return layers_by_image(listing, keys, lambda text: problems.add(BAD_LAYERS, text))


def _tell_alike(
    listing: Listing, images: Iterable[ListedFile], problems: Problems, prefix: str
) -> None:
    """Tell of images that share a caption, or whose names are one on other systems."""
    keys: dict[str, ListedFile] = {}
    lower: dict[str, ListedFile] = {}
    for file in images:
        first = keys.setdefault(file.key, file)
        if first is not file:
            problems.tell(f"{prefix}{first.shown} and {prefix}{file.shown} share one caption")
            continue
        alike = lower.setdefault(f"{file.key.lower()}{file.extension}", file)
        if alike is not file:
            problems.tell(
                f"{prefix}{alike.shown} and {prefix}{file.shown} differ in upper and lower case "
                "alone, and are one file on Windows and macOS"
            )


def _find_lonely_captions(listing: Listing, problems: Problems, prefix: str) -> None:
    keys = {file.key for file in (*listing.images, *listing.foreign, *listing.clips)}
    for key, file in sorted(listing.captions.items()):
        if key not in keys:
            name = prefix + file.shown
            problems.add("missing_image", f"{name} has no image of the same name")
    for key, files in sorted(listing.other_captions.items()):
        for file in files if key not in keys else ():
            words = "{count} file(s) are not part of the dataset: {names}"
            problems.count(words, prefix + file.shown)


def _nothing_left(settings: DatasetSection, problems: Sequence[str]) -> DatasetError:
    folder = dataset_root(settings.path)
    refuse_images_inside(folder)
    if settings.layout != "metadata" and dataset_layout(folder, settings) in _IN_A_FOLDER:
        folder = folder / training_folder(folder, settings.layout)
    if problems:
        shown = listed(problems, SHOWN, "; ")
        found = f"dataset.path: no sample is left in {folder} ({shown})"
        remedy = (
            f"Put images ({READABLE_IMAGES}) with captions there, fix what was left out, or change "
            "what leaves it out, such as dataset.missing_caption."
        )
    else:
        found = f"dataset.path: there are no images in {folder}"
        remedy = f"Put images ({READABLE_IMAGES}) with captions there, or set dataset.path."
    return DatasetError(found, "at least one image with its caption", remedy)
