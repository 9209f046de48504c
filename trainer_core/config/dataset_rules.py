"""Settings of a dataset that contradict each other.

Each rule gives what was found, what was expected, and what to do, as `problems.Problem` has them.
"""

from __future__ import annotations

from collections.abc import Iterator

from .dataset import CacheSection, DatasetSection
from .folders import FolderSection, Layout
from .mask_rules import mask_contradictions
from .size_rules import size_contradictions

Contradiction = tuple[str, str, str]


def dataset_contradictions(dataset: DatasetSection, cache: CacheSection) -> Iterator[Contradiction]:
    """What contradicts itself in the section ``dataset``.

    Args:
        dataset: The section.
        cache: Beside it; a finished cache needs no folders.
    """
    yield from _folders_without_path(dataset, cache)
    yield from mask_contradictions(dataset)
    yield from _unread_metadata(dataset)
    yield from _controls_twice(dataset)
    yield from size_contradictions(dataset, cache)


def _folders_without_path(dataset: DatasetSection, cache: CacheSection) -> Iterator[Contradiction]:
    if dataset.folders and not dataset.path and not cache.manifest:
        yield (
            f"dataset.folders names {len(dataset.folders)} folder(s) and dataset.path is empty",
            "the first folder in dataset.path, and further ones in dataset.folders",
            "Move the first folder of dataset.folders to dataset.path.",
        )


def _laid_out(
    dataset: DatasetSection,
) -> Iterator[tuple[str, DatasetSection | FolderSection, Layout]]:
    """Each folder with its place in the run file and its layout."""
    yield "dataset", dataset, dataset.layout
    for number, folder in enumerate(dataset.folders):
        yield f"dataset.folders[{number}]", folder, folder.layout or dataset.layout


def _unread_metadata(dataset: DatasetSection) -> Iterator[Contradiction]:
    for place, folder, layout in _laid_out(dataset):
        if folder.metadata is not None and layout not in {"auto", "metadata"}:
            yield (
                f"{place}.metadata is set and its layout is {layout}",
                "a metadata file only with layout auto or metadata",
                f"Leave {place}.metadata out, or set {place}.layout to metadata.",
            )


def _controls_twice(dataset: DatasetSection) -> Iterator[Contradiction]:
    for place, folder, layout in _laid_out(dataset):
        if folder.control_folders and layout in {"paired", "layered", "metadata"}:
            yield (
                f"{place}.control_folders is set and its layout is {layout}",
                "control images in one way",
                f"Leave {place}.control_folders out, or set {place}.layout to flat.",
            )
