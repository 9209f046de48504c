"""Hugging Face's datasets on disk: image folders in parts are read, the other forms are named.

An image folder in parts has folders ``train``, ``validation``, ``test``, each with a metadata file.
What `save_to_disk` writes (Arrow), and parquet files that hold the images themselves, are refused
by name: `docs/decisions/0039-metadata-files-and-folders.md` says why.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .metadata_file import images_inside, metadata_file

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
        part: What its images are for.
        folder: Where it is.
        metadata: Its metadata file; None where it has none.
    """

    part: Part
    folder: Path
    metadata: Path | None


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
    """Refuse a dataset whose images are no files, by the names that it has.

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
                "inside or is no metadata file by its name"
            )


def _names(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except OSError:
        return set()
