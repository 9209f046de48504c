"""Settings of sizes and of held-out images that contradict each other, or have no effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .dataset import CacheSection, DatasetSection
from .validation import ValidationSection

_SMALLEST, _LARGEST = 32, 4096
_SHAPE = re.compile(r"[1-9][0-9]{0,3}:[1-9][0-9]{0,3}")

Contradiction = tuple[str, str, str]


def size_contradictions(dataset: DatasetSection, cache: CacheSection) -> Iterator[Contradiction]:
    """What contradicts itself.

    Args:
        dataset: The section.
        cache: Beside it; a finished cache says itself what is held out.
    """
    yield from _more_resolutions(
        "dataset.more_resolutions", dataset.more_resolutions, dataset.resolution
    )
    yield from _more_shapes("dataset", dataset.more_shapes, dataset)
    for number, folder in enumerate(dataset.folders):
        yield from _more_shapes(f"dataset.folders[{number}]", folder.more_shapes or (), dataset)
        further = folder.more_resolutions
        if further is not None:
            place = f"dataset.folders[{number}].more_resolutions"
            yield from _more_resolutions(place, further, folder.resolution or dataset.resolution)
    yield from _unread_aspect(dataset)
    yield from _coarse_step(dataset)
    yield from _unread_validation(dataset, cache)


def _more_resolutions(place: str, further: Sequence[int], first: int) -> Iterator[Contradiction]:
    seen = {first}
    for number, resolution in enumerate(further):
        where = f"{place}[{number}]: {resolution}"
        if not _SMALLEST <= resolution <= _LARGEST:
            yield (
                where,
                f"a number from {_SMALLEST} to {_LARGEST}, in pixels",
                f"Take it out of {place}, or set a size that can be trained.",
            )
        elif resolution in seen:
            yield (
                f"{where}, which is a training size already",
                f"sizes beside resolution, which is {first}, each named once",
                f"Take it out of {place}.",
            )
        seen.add(resolution)


def _more_shapes(
    place: str, shapes: Sequence[str], dataset: DatasetSection
) -> Iterator[Contradiction]:
    widest = dataset.max_aspect_ratio
    for number, shape in enumerate(shapes):
        where = f"{place}.more_shapes[{number}]: {shape}"
        sides = [int(side) for side in shape.split(":")] if _SHAPE.fullmatch(shape) else []
        if not sides:
            yield (
                where,
                "width and height as whole numbers with a colon between, such as 16:9",
                f"Correct it, or take it out of {place}.more_shapes.",
            )
        elif dataset.bucketing == "area" and max(sides) > widest * min(sides):
            yield (
                f"{where}, and dataset.max_aspect_ratio is {widest:g}",
                "shapes that a bucket may have",
                "Raise dataset.max_aspect_ratio, or take a less extreme shape.",
            )


def _unread_aspect(dataset: DatasetSection) -> Iterator[Contradiction]:
    usual = DatasetSection.model_fields["max_aspect_ratio"].default
    if dataset.bucketing == "longest_side" and dataset.max_aspect_ratio != usual:
        yield (
            f"dataset.max_aspect_ratio is {dataset.max_aspect_ratio:g} and dataset.bucketing is "
            "longest_side, with which each image keeps its shape",
            "a most extreme shape only with dataset.bucketing area",
            "Leave dataset.max_aspect_ratio out, or set dataset.bucketing to area.",
        )


def _coarse_step(dataset: DatasetSection) -> Iterator[Contradiction]:
    step = dataset.bucket_step
    sizes = [dataset.resolution, *(each.resolution or step or 0 for each in dataset.folders)]
    if step is not None and step > min(sizes):
        yield (
            f"dataset.bucket_step is {step} and a resolution is {min(sizes)}",
            "a step of at most the resolution: sides of buckets are multiples of it",
            f"Lower dataset.bucket_step to {min(sizes)} or less, or leave it out.",
        )


def _unread_validation(dataset: DatasetSection, cache: CacheSection) -> Iterator[Contradiction]:
    given = dataset.validation
    held_out = given.share or any(each.role == "validation" for each in dataset.folders)
    if not held_out and given != ValidationSection() and not cache.manifest:
        yield (
            "dataset.validation has settings and no image is held out",
            "every, most and noise_levels only with a share above 0, or with a folder of role "
            "validation",
            "Set dataset.validation.share, or leave the section out.",
        )
