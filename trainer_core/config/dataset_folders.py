"""The folders of a dataset, each with the settings that hold for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .dataset import DatasetSection
from .folders import OVERRIDES, Role, own_name


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """One folder with the settings that hold for it.

    Attributes:
        place: The setting that names it, such as ``dataset.folders[0].path``; for messages.
        role: What its images are for.
        weight: Factor on its images' loss.
        settings: As ``dataset``, with what the folder says otherwise; ``path`` is the folder, and
            no further folders are in it.
    """

    place: str
    role: Role
    weight: float
    settings: DatasetSection


def dataset_folders(dataset: DatasetSection) -> tuple[DatasetFolder, ...]:
    """All folders of a dataset, in the order in which `Sample.folder` counts them.

    Returns:
        ``dataset.path``, also where it is empty, as beside a finished cache; then
        ``dataset.folders``; then ``dataset.regularization`` where it has a path.
    """
    return tuple(_folders(dataset))


def _folders(dataset: DatasetSection) -> Iterator[DatasetFolder]:
    alone = dataset.model_copy(
        update={"folders": [], "regularization": type(dataset.regularization)()}
    )
    yield DatasetFolder("dataset.path", "train", 1.0, alone)
    # Files and folders of the first one say nothing about the others.
    other = alone.model_copy(update={"metadata": None, "control_folders": [], "mask_folder": ""})
    # Ordinary images need no masks because your own have some.
    plain = "auto" if other.mask.source == "files" else other.mask.source
    for index, folder in enumerate(dataset.folders):
        said = {name: getattr(folder, own_name(name)) for name in OVERRIDES}
        own = {name: value for name, value in said.items() if value is not None}
        if folder.role == "regularization":
            own = {"trigger_word": "", "mask.source": plain} | own
        if (source := own.pop("mask.source", None)) is not None:
            own["mask"] = other.mask.model_copy(update={"source": source})
        own |= {"path": folder.path, "metadata": folder.metadata}
        settings = other.model_copy(update=own)
        yield DatasetFolder(f"dataset.folders[{index}].path", folder.role, folder.weight, settings)
    ordinary = dataset.regularization
    if ordinary.path:
        own = {"path": ordinary.path, "num_repeats": ordinary.num_repeats, "trigger_word": ""}
        own["mask"] = other.mask.model_copy(update={"source": plain})
        settings = other.model_copy(update=own)
        where = "dataset.regularization.path"
        yield DatasetFolder(where, "regularization", ordinary.weight, settings)
