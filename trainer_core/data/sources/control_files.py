"""Which file is a control image of which training image: by its name, its folder, or both."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...filesystem.allowed_folders import AllowedFolders
from .folder_problems import Problems
from .list_files import ListedFile, Listing, keys_by_name, list_folder
from .mask_files import MaskFile, Masks, masked_image

_MARKED = re.compile(r"^(?P<stem>.+)_control(?:_(?P<number>\d{1,4}))?$", re.DOTALL)
_NUMBERED = re.compile(r"^(?P<stem>.+)_(?P<number>\d{1,4})$", re.DOTALL)

_FURTHER = (
    "{count} numbered control image(s) stand beside one of the image's own name and are given too, "
    "as in musubi-tuner; ai-toolkit and FlyMyAI pass them over: {names}"
)


@dataclass(frozen=True, slots=True)
class ControlName:
    """What the name of a control image says.

    Attributes:
        target: Stem of the training image, with its folder.
        number: Position among the target's controls as written; None where none is written.
    """

    target: str
    number: int | None


@dataclass(frozen=True, slots=True)
class Control:
    """One control image.

    Attributes:
        folder: Which of the folders of control images it lies in; 0 for the first, and beside
            its image.
    """

    name: ControlName
    path: Path
    shown: str
    folder: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """What control images are put in order by."""
        return self.folder, -1 if self.name.number is None else self.name.number


Controls = dict[str, list[Control]]
"""Key of a training image to its control images."""


def control_in_folder(stem: str, targets: Collection[str]) -> ControlName | None:
    """Target and position of an image in the folder of controls; None when no training image fits.

    A target of exactly the same name wins over the numbered spellings, so that ``a_1.png`` is the
    control of a training image ``a_1``, and of ``a`` only where there is no ``a_1``.

    Args:
        stem: Path of the control within its folder, without extension.
    """
    if stem in targets:
        return ControlName(stem, None)
    for pattern in (_MARKED, _NUMBERED):
        name = _read(pattern, stem)
        if name is not None and name.target in targets:
            return name
    return None


def numbering_problem(numbers: Collection[int | None]) -> str | None:
    """Say what is wrong with the positions of one target's controls; None when in order.

    Args:
        numbers: One per control; None counts as the place before the first number.
    """
    written = sorted(number for number in numbers if number is not None)
    if len(set(numbers)) < len(numbers):
        return "two control images claim the same place"
    if not written:
        return None
    if written[0] > 1:
        return f"control images begin at number {written[0]}"
    if written[-1] - written[0] + 1 != len(written):
        missing = sorted(set(range(written[0], written[-1])) - set(written))
        return f"control image number {missing[0]} is missing"
    return None


def ordered(controls: Iterable[Control]) -> tuple[list[Control], str | None]:
    """Control images of a target by folder and number, and what is wrong with the numbers."""
    found = sorted(controls, key=lambda control: control.place)
    folders = sorted({control.folder for control in found})
    each = ([c.name.number for c in found if c.folder == folder] for folder in folders)
    problems = (numbering_problem(numbers) for numbers in each)
    return found, next((problem for problem in problems if problem), None)


def controls_in_folders(
    folders: Sequence[Path],
    targets: Listing,
    masks: Masks,
    problems: Problems,
    within: AllowedFolders | None,
) -> Controls:
    """Read folders of control images.

    Args:
        folders: The first holds the first control image of each training image.
        masks: Gets those that lie among the control images, as in qwen-image-finetune's datasets.
        problems: Told of control images without training image, and of what is not read.
    """
    keys = {file.key for file in targets.images}
    known = keys | set(targets.captions) | {file.key for file in targets.foreign}
    by_name = keys_by_name(keys)
    controls: Controls = {}
    for place, folder in enumerate(folders):
        without = [targets.folder, *(each for each in folders if each != folder)]
        captions, clips = problems.settings.caption_extension, targets.with_clips
        listing = list_folder(folder, captions, within, without=without, clips=clips)
        for file in listing.images:
            name, shown = control_in_folder(file.key, keys), f"{folder.name}/{file.shown}"
            names = [] if name is None else [name]
            if name is None and (name := control_in_folder(file.key, by_name)) is not None:
                names = [ControlName(key, name.number) for key in by_name[name.target]]
            masked = masked_image(file.key) if name is None else None
            if masked in keys:
                masks.setdefault(masked, MaskFile(listing.path(file), shown))
                continue
            for each in names:
                control = Control(each, listing.path(file), shown, place)
                controls.setdefault(each.target, []).append(control)
            if names:
                continue
            if control_in_folder(file.key, known) is None:
                problems.add("missing_control", f"{shown} has no training image")
            else:
                problems.tell(f"left out: {shown}, because its training image cannot be read")
        _tell_further(controls, place, problems)
        if problems.settings.layout == "paired":
            # qwen-image-finetune reads a caption there that it does not find beside the image.
            for key in keys & listing.captions.keys() - targets.captions.keys():
                file = listing.captions.pop(key)
                targets.captions[key] = file._replace(name=f"../{folder.name}/{file.name}")
        problems.tell_unread(listing, f"{folder.name}/", captions=True)
    return controls


def _tell_further(controls: Controls, place: int, problems: Problems) -> None:
    """Tell of numbered control images beside one of the exact name, in a folder of any name.

    Source: ostris/ai-toolkit at 27a03a91, ``ControlFileItemDTOMixin``, and FlyMyAI's trainer read
    the exact name alone; kohya-ss/musubi-tuner, ``datasources.py``, takes both.
    """
    for found in controls.values() if problems.settings.control_folders else ():
        here = [each for each in found if each.folder == place]
        if any(each.name.number is None for each in here):
            for each in here:
                if each.name.number is not None:
                    problems.count(_FURTHER, each.shown)


def folders_of_pairs(images: Iterable[ListedFile], listing: Listing) -> dict[str, str]:
    """Folders without a caption whose images have the names of captioned ones of another folder.

    So ai-toolkit and FlyMyAI lay control images, whose folders may have any name.

    Returns:
        The folder of what are likely control images, to the one of their images.
    """
    names: dict[str, set[str]] = {}
    captioned: dict[str, set[str]] = {}
    for file in images:
        folder, _, name = file.key.rpartition("/")
        names.setdefault(folder, set()).add(name)
        if file.key in listing.captions or file.key in listing.other_captions:
            captioned.setdefault(folder, set()).add(name)
    found: dict[str, str] = {}
    for folder in names.keys() - captioned.keys() - {""}:
        near = [each for each in captioned if names[folder] <= captioned[each]]
        if len(near) == 1:
            found[folder] = near[0]
    return found


def controls_beside(
    images: Iterable[ListedFile], listing: Listing, problems: Problems
) -> tuple[list[ListedFile], Controls]:
    """Part images from the control images that lie beside them.

    An image with a caption of its own is a training image, whatever its name.
    """
    images = list(images)
    marked = {
        file: control
        for file in images
        if "_control" in file.key
        and file.key not in listing.captions
        and (control := _read(_MARKED, file.key)) is not None
    }
    targets = [file for file in images if file not in marked] if marked else images
    keys = {file.key for file in targets} if marked else set()
    controls: Controls = {}
    for file, name in marked.items():
        if name.target in keys:
            control = Control(name, listing.path(file), file.shown)
            controls.setdefault(name.target, []).append(control)
        else:
            problems.add("missing_control", f"{file.shown} has no training image")
    return targets, controls


def _read(pattern: re.Pattern[str], stem: str) -> ControlName | None:
    match = pattern.match(stem)
    if match is None or match["stem"].endswith("/"):
        return None
    return ControlName(match["stem"], int(match["number"]) if match["number"] else None)
