"""How a dataset folder is laid out."""

from __future__ import annotations

import re
from pathlib import Path

from ...config import DatasetSection
from ...errors import DatasetError
from .other_programs import MASK

TRAINING_FOLDER = "training_images"
CONTROL_FOLDER = "control_images"
LAYERS_FOLDER = "layers"
MASK_FOLDER = "masks"
FOLDERS = (TRAINING_FOLDER, CONTROL_FOLDER, LAYERS_FOLDER)
"""Folders whose names say what lies in them."""


_MASK_ENDINGS = ("_mask", MASK)
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


def masked_image(key: str) -> str | None:
    """The key of the image that a file is the mask of by its name; None where it is no mask."""
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


def dataset_layout(root: Path, settings: DatasetSection) -> str:
    """Tell how a dataset folder is laid out.

    Args:
        settings: Its settings, of which the layout counts.

    Returns:
        ``flat``, ``paired``, ``layered`` or ``kohya``; of ``auto`` never ``kohya``, because that
        takes the names of all images (`kohya.looks_like_kohya`).

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
