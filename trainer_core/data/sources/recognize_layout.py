"""How a dataset folder is laid out: the one place that recognises each layout.

Metadata: a file lists the images, in the folder or in the parts of a Hugging Face image folder.
Paired: ``training_images/`` as in the flat layout, and ``control_images/`` with images of the same
names. Layered: ``training_images/``, and ``layers/`` with the layers of each. Kohya: every image
lies directly in a folder named ``10_name``. Flat: everything else, images beside caption files in
any sub-folder. What Hugging Face's `save_to_disk` writes (Arrow), and parquet files that hold the
images themselves, are refused by name (docs/decisions/0039-metadata-files-and-folders.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...config import DatasetSection
from ...errors import DatasetError
from .list_files import ListedFile
from .metadata_file import images_inside, metadata_file

TRAINING_FOLDER = "training_images"
CONTROL_FOLDER = "control_images"
LAYERS_FOLDER = "layers"
MASK_FOLDER = "masks"
FOLDERS = (TRAINING_FOLDER, CONTROL_FOLDER, LAYERS_FOLDER)
"""Folders whose names say what lies in them."""


_METADATA_LAYOUTS = ("auto", "metadata")

MOST_GUESSED = 200
"""The largest number that is taken for repeats unasked; folders may be named after years."""

REPEATED_FOLDER = re.compile(r"(?P<repeats>\d{1,9})_(?P<name>.+)", re.DOTALL)
"""Names of folders in kohya's layout."""

# Names that qwen-image-finetune reads as well, the first before the others; with paired alone.
_TRAINING_NAMES = (TRAINING_FOLDER, "images", "target_images", "target", "targets")
_CONTROL_NAMES = (CONTROL_FOLDER, "control", "condition_images", "controls")
_MORE_CONTROLS = re.compile(rf"{CONTROL_FOLDER}_(?P<number>\d{{1,2}})")


def training_folder(root: Path, layout: str) -> str:
    """Name of the folder of training images in a layout that has one."""
    names = _TRAINING_NAMES if layout == "paired" else ()
    return next((name for name in names if (root / name).is_dir()), TRAINING_FOLDER)


def control_folders(root: Path, layout: str = "paired") -> list[str]:
    """Names of the folders of control images: the first, then those with a number, in order."""
    names = _CONTROL_NAMES if layout == "paired" else (CONTROL_FOLDER,)
    numbered = (
        (int(match["number"]), path.name)
        for path in root.iterdir()
        if (match := _MORE_CONTROLS.fullmatch(path.name)) and path.is_dir()
    )
    first = [name for name in names if (root / name).is_dir()]
    return [*first[:1], *(name for _, name in sorted(numbered))]


def dataset_layout(root: Path, settings: DatasetSection) -> str:
    """Tell how a dataset folder is laid out.

    Args:
        settings: Its settings, of which the layout counts.

    Returns:
        ``flat``, ``paired``, ``layered`` or ``kohya``; of ``auto`` never ``kohya``, because that
        takes the names of all images (`looks_like_kohya`).

    Raises:
        DatasetError: When a folder of the layout is missing, or there are those of two layouts.
    """
    wanted = settings.layout
    training = (root / training_folder(root, wanted)).is_dir()
    control, layers = bool(control_folders(root, wanted)), (root / LAYERS_FOLDER).is_dir()
    if settings.control_folders and wanted == "auto":
        return "flat"
    if wanted in {"flat", "kohya"}:
        return wanted
    if wanted == "auto" and not training | control:
        return "flat"
    if wanted == "auto" and training and layers:
        if control:
            raise DatasetError(
                f"dataset.path: {root} has the folders {CONTROL_FOLDER} and {LAYERS_FOLDER}",
                "one of them: an image with layers is its own control image",
                "Move one of them elsewhere, or set dataset.layout to paired or layered.",
            )
        wanted = "layered"
    second, there = (LAYERS_FOLDER, layers) if wanted == "layered" else (CONTROL_FOLDER, control)
    if training and there:
        return "layered" if wanted == "layered" else "paired"
    missing = second if training else TRAINING_FOLDER
    layout = "layered" if wanted == "layered" else "paired"
    raise DatasetError(
        f"dataset.path: {root} has no folder {missing}",
        f"the folders {TRAINING_FOLDER} and {second} ({layout} layout)",
        f"Add {missing}, or set dataset.layout: flat for images without control images.",
    )


def looks_like_kohya(images: Iterable[ListedFile]) -> bool:
    """Whether every image lies directly in a folder that is named so, by a number that is small."""
    folders = {file.name.rpartition("/")[0] for file in images}
    return bool(folders) and all(
        (match := REPEATED_FOLDER.fullmatch(folder)) is not None
        and "/" not in folder
        and 1 <= int(match["repeats"]) <= MOST_GUESSED
        for folder in folders
    )


Part = Literal["train", "validation", "test"]

PARTS: dict[Part, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""The parts of a dataset, to the names that their folders have."""


@dataclass(frozen=True, slots=True)
class PartFolder:
    """A folder of an image folder in parts.

    Attributes:
        metadata: Its metadata file; None where it has none.
    """

    part: Part
    folder: Path
    metadata: Path | None


def metadata_parts(root: Path, settings: DatasetSection) -> Sequence[PartFolder]:
    """The parts of a dataset whose images are listed; none in another layout."""
    if settings.layout not in _METADATA_LAYOUTS:
        return ()
    file = metadata_file(root, settings.metadata)
    if file is not None:
        return (PartFolder("train", root, file),)
    parts = part_folders(root)
    if not parts and settings.layout == "metadata":
        raise DatasetError(
            f"dataset.layout is metadata, and {root} has no metadata file",
            "metadata.jsonl, metadata.csv or metadata.parquet in the folder, or in its folders "
            "train and validation",
            "Add the file, name it in dataset.metadata, or set dataset.layout to auto.",
        )
    return parts


def part_folders(root: Path) -> tuple[PartFolder, ...]:
    """The parts of a Hugging Face image folder.

    Returns:
        In the order train, validation, test; none where no such folder has a metadata file, which
        is then an ordinary folder with sub-folders.

    Raises:
        DatasetError: When a part has several metadata files.
    """
    found = [
        PartFolder(part, folder, metadata_file(folder, None))
        for part, names in PARTS.items()
        for name in names
        if (folder := root / name).is_dir()
    ]
    return tuple(found) if any(each.metadata for each in found) else ()


def refuse_images_inside(root: Path) -> None:
    """Refuse a dataset whose images are not files, by the names that it has.

    Raises:
        DatasetError: When the folder is what `save_to_disk` wrote, or has parquet files beside no
            metadata file of its own.
    """
    names = _names(root)
    if "dataset_dict.json" in names or {"dataset_info.json", "state.json"} <= names:
        raise images_inside(
            f"dataset.path: {root} is a dataset that Hugging Face's save_to_disk wrote (Arrow)"
        )
    for folder in (root, root / "data"):
        tables = sorted(name for name in _names(folder) if name.lower().endswith(".parquet"))
        if tables:
            raise images_inside(
                f"dataset.path: {folder} has no images as files, but {tables[0]}, which holds them "
                "inside or is not a metadata file by its name"
            )


def _names(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except OSError:
        return set()
