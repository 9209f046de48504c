"""What of a folder is trained, as a mark: folders with the same images and captions have the same.

Which run its images belong to, the trainer knows when they are encoded. A mark tells a page before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import TrainerError
from ...host import comfy_host
from ...host.folders import folder_stamp
from ..panel.prompt_settings import GraphSettings

if TYPE_CHECKING:
    from ....trainer_core.config import DatasetSection
    from ....trainer_core.data.file_memory import FileMemory

_READ = ("layout", "caption_extension", "metadata")
"""Settings of a folder that decide which of its files are read."""

_FOLDERS = frozenset({"folder", "regularization_folder"})


def marks_of(dataset: DatasetSection) -> dict[str, str]:
    """The mark of each folder of a dataset by its path, before it is encoded.

    Raises:
        DatasetError: When one cannot be read.
    """
    from ....trainer_core.config import dataset_folders

    memory = _memory()
    settings = (each.settings for each in dataset_folders(dataset) if each.settings.path)
    found = {each.path: _mark(_reduced(each.path, vars(each)), memory) for each in settings}
    memory.save()
    return found


def folders_of(settings: GraphSettings) -> Iterable[tuple[str, str]]:
    """The folders of images that a graph asks for: the place, and the folder's name."""
    for place, name in settings.decides.items():
        if place.rpartition("/")[2] in _FOLDERS and isinstance(name, str):
            yield place, name


def with_marks(settings: GraphSettings) -> GraphSettings:
    """What a graph asks for, with the marks that its folders have now."""
    marks: dict[str, str] = {}
    for place, name in folders_of(settings):
        beside = place.rpartition("/")[0]
        own = {each: settings.decides.get(f"{beside}/{each}".lstrip("/")) for each in _READ}
        # A prompt may come from anybody: what is not a setting has no mark.
        with contextlib.suppress(TrainerError, OSError, ValueError):
            path = comfy_host.dataset_path(name)
            marks[name] = _known(_reduced(str(path), own).model_dump_json(), folder_stamp(path))
    return settings._replace(images=marks)


@lru_cache(maxsize=32)
def _known(settings: str, stamp: str) -> str:
    from ....trainer_core.config import DatasetSection

    del stamp
    return _mark(DatasetSection.model_validate_json(settings), _memory())


def _reduced(path: str, values: Any) -> DatasetSection:
    from ....trainer_core.config import DatasetSection

    read = {name: values[name] for name in _READ if values.get(name)}
    return DatasetSection(path=path, missing_caption="empty", **read)


def _memory() -> FileMemory:
    from ....trainer_core.data.file_memory import FileMemory

    return FileMemory(comfy_host.output_folder() / "cache")


def _mark(settings: DatasetSection, memory: FileMemory) -> str:
    from ....trainer_core.data.sources.scan_folder import survey
    from ....trainer_core.types import ANY_CLIPS

    within, digest = comfy_host.allowed_folders(), hashlib.sha256()
    for each in survey(settings, within, remembered=memory, grid=ANY_CLIPS).samples:
        files = (each.image, *each.controls, *each.layers, *([each.mask] if each.mask else []))
        facts = (each.captions, each.repeats, each.weight, each.focus, each.validation)
        digest.update(json.dumps([[memory.of(file) for file in files], facts]).encode())
    return digest.hexdigest()
