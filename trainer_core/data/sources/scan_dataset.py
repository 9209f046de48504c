"""All folders of a dataset as one list of samples, each with its role, and what is held out.

Names are made unique: those of the first folder stay as they are, those of
``dataset.regularization`` begin with ``regularization/``, and those of further folders with the
folder's own name.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from ...config import DatasetSection
from ...config.dataset import DatasetFolder, dataset_folders
from ...counters import counter_seed
from ...errors import DatasetError
from ...filesystem.allowed_folders import AllowedFolders
from ...printable import listed
from ...types import FrameGrid, Sample
from ..file_memory import FileMemory
from ..paused_gc import paused_gc
from .clip_files import image_name
from .folder_problems import SHOWN, Scan
from .list_files import shown_text
from .scan_folder import scan

REGULARIZATION = "regularization"
"""What the names of regularization images begin with."""

_FIRST = "dataset.path"


@paused_gc()
def scan_all(
    settings: DatasetSection,
    within: AllowedFolders | None = None,
    *,
    stop: bool = True,
    seed: int = 0,
    remembered: FileMemory | None = None,
    grid: FrameGrid | None = None,
) -> Scan:
    """Read all folders of a dataset, one after the other in the order of `dataset_folders`.

    Args:
        settings: The folders, their layouts, and what to do about mistakes.
        seed: The run's seed, which decides what ``dataset.validation.share`` holds out.
        remembered: What is known of the images already.

    Raises:
        DatasetError: As `scan_folder.scan`; and when an image lies in two folders, or only one of
            two folders has control images.
    """
    folders = dataset_folders(settings)
    found = [_scan_one(folder, within, remembered, grid, stop=stop) for folder in folders]
    _refuse_shared(folders, found)
    _refuse_mixed(folders, found)
    prefixes = _prefixes(folders, found)
    samples = [
        _marked(sample, folder.role, number, prefixes[number])
        for number, (folder, each) in enumerate(zip(folders, found, strict=True))
        for sample in each.samples
    ]
    problems = [
        f"{prefix.rstrip('/')}: {problem}" if prefix else problem
        for prefix, each in zip(prefixes, found, strict=True)
        for problem in each.problems
    ]
    samples = _split(samples, settings, seed, problems)
    return Scan(
        tuple(samples),
        tuple(problems),
        next((each.refusal for each in found if each.refusal is not None), None),
        tuple(fault for each in found for fault in each.faults),
    )


def _scan_one(
    folder: DatasetFolder,
    within: AllowedFolders | None,
    remembered: FileMemory | None,
    grid: FrameGrid | None,
    *,
    stop: bool,
) -> Scan:
    """Scan a folder; an error names the setting that the folder stands in."""
    try:
        return scan(folder.settings, within, stop=stop, remembered=remembered, grid=grid)
    except DatasetError as error:
        if folder.place == _FIRST:
            raise
        parts = (error.found, error.expected, error.remedy)
        found, expected, remedy = (part.replace(_FIRST, folder.place) for part in parts)
        if folder.place not in found:
            found = f"{folder.place}: {found}"
        raise DatasetError(found, expected, remedy) from error


def _refuse_shared(folders: Sequence[DatasetFolder], found: Sequence[Scan]) -> None:
    """Refuse an image that lies in two folders: the same one twice, or one inside the other."""
    if len(folders) == 1:
        return
    roots = [os.path.realpath(Path(folder.settings.path).expanduser()) for folder in folders]
    for number, root in enumerate(roots):
        first = roots.index(root)
        if first < number:
            raise DatasetError(
                f"{folders[number].place}: {folders[number].settings.path} is "
                f"{folders[first].place} as well",
                "another folder" + _wanted(folders[number]),
                f"Name another folder, or leave {folders[number].place} out.",
            )
    known: dict[str, tuple[int, bool, str]] = {}
    parents: dict[str, str] = {}
    for number, each in enumerate(found):
        shared = []
        other = number
        top = len(str(Path(folders[number].settings.path).expanduser()))
        for sample in each.samples:
            held = sample.validation or folders[number].role == "validation"
            written = roots[number] + str(sample.image)[top:]
            own = number, held, written
            first, was_held, path = known.setdefault(_real(written, parents), own)
            # A link may show an image twice on purpose, but not what is held out.
            if first != number and (path == written or was_held != held):
                shared.append(sample.name)
                other = first
        if shared:
            raise _shared_error(folders[other], folders[number], shared)


def _real(path: str, parents: dict[str, str]) -> str:
    """Where an image really lies; `parents` remembers that of folders."""
    parent, _, name = path.rpartition("/")
    real = parents.get(parent)
    if real is None:
        real = parents[parent] = os.path.realpath(parent)
    whole = f"{real}/{name}"
    return os.path.realpath(whole) if os.path.islink(whole) else whole  # noqa: PTH114 - many files


def _shared_error(
    first: DatasetFolder, second: DatasetFolder, names: Sequence[str]
) -> DatasetError:
    why = "it would be trained twice"
    if "validation" in (first.role, second.role):
        why = "it would be trained and measured, and a held-out image is never trained on"
    return DatasetError(
        f"{second.place}: {listed(names, SHOWN)} in {second.settings.path} is read by "
        f"{first.place} as well ({first.settings.path}): {why}",
        "folders that have no image in common",
        f"Move one folder out of the other, or leave {second.place} out.",
    )


def _wanted(folder: DatasetFolder) -> str:
    words = {
        "train": ", with more of your own images",
        "regularization": ", with ordinary images",
        "validation": ", with images that are never trained on",
    }
    return words[folder.role]


def _refuse_mixed(folders: Sequence[DatasetFolder], found: Sequence[Scan]) -> None:
    """Refuse folders of which one has control images and another has none.

    That holds for all roles: an edit base that is held to images without control image, or is
    measured on them, does something else than what is trained.
    """
    has = [any(sample.controls for sample in each.samples) for each in found]
    without = any(each.settings.missing_control == "without" for each in folders)
    if len(set(has)) > 1 and not without:
        other = has.index(not has[0])
        raise DatasetError(
            f"one of {folders[0].place} and {folders[other].place} has control images, the other "
            "has none",
            "all folders with control images, or all without",
            "Add control images to the folder without, name another folder, or set "
            "dataset.missing_control: without.",
        )


def _prefixes(folders: Sequence[DatasetFolder], found: Sequence[Scan]) -> list[str]:
    """What names begin with, folder for folder; no two samples then have the same name."""
    taken = {sample.name for sample in found[0].samples}
    prefixes = [""]
    for number, folder in enumerate(folders[1:], 1):
        own = REGULARIZATION
        if folder.place != "dataset.regularization.path":
            own = shown_text(Path(folder.settings.path).expanduser().name) or "folder"
        prefix, again = f"{own}/", 2
        while prefix in prefixes or any(
            prefix + sample.name in taken for sample in found[number].samples
        ):
            prefix, again = f"{own}-{again}/", again + 1
        prefixes.append(prefix)
        taken.update(prefix + sample.name for sample in found[number].samples)
    return prefixes


def _marked(sample: Sample, role: str, number: int, prefix: str) -> Sample:
    if number == 0:
        return sample
    return dataclasses.replace(
        sample,
        name=prefix + sample.name,
        regularization=role == "regularization",
        validation=role == "validation" or sample.validation,
        folder=number,
    )


def _split(
    samples: list[Sample], settings: DatasetSection, seed: int, problems: list[str]
) -> list[Sample]:
    """Hold out a share of the own images; the parts of a clip stay together."""
    share = settings.validation.share
    own = [image_name(each) for each in samples if not (each.regularization or each.validation)]
    if not own:
        raise DatasetError(
            "all images of the dataset are held out for validation, or are regularization images",
            "at least one image that is trained",
            "Put images into dataset.path, or give a folder the role train.",
        )
    if not share:
        return samples
    chosen = held_out(list(dict.fromkeys(own)), share, seed)
    if not chosen:
        problems.append(
            "dataset.validation.share holds nothing out: there is one image, and it is trained"
        )
    return [
        dataclasses.replace(each, validation=True)
        if not (each.regularization or each.validation) and image_name(each) in chosen
        else each
        for each in samples
    ]


_ALL = 2**63  # one more than the largest seed


def held_out(names: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """Choose the images that are never trained on, by the run's seed and each one's own name.

    Images that are added or removed move no other one to the other side, but for the last one that
    keeps a side from being empty.

    Args:
        share: ``dataset.validation.share``, 0 to 0.5: the chance of each.

    Returns:
        Some of the names: none with a share of 0 or of a single image; else at least one and never
        all.
    """
    if share <= 0 or len(names) < 2:
        return frozenset()
    drawn = {name: counter_seed(seed, "validation", name) for name in names}
    chosen = {name for name, number in drawn.items() if number < share * _ALL}
    order = sorted(drawn, key=lambda name: (drawn[name], name))
    if not chosen:
        chosen.add(order[0])
    elif len(chosen) == len(drawn):
        chosen.discard(order[-1])
    return frozenset(chosen)
