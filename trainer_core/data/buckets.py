"""Buckets: the sizes at which each sample is trained.

A bucket's sides are multiples of the family's granularity, or of a coarser one that the dataset
asks for, and its area is at most resolution x resolution. An image gets the bucket of the nearest
aspect ratio that it can fill without being enlarged; one that is too small for any keeps its own
size. With further resolutions it is planned once more for each of them that it fills, and with
further shapes once more for what is left of it when it is cut to each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..config import DatasetSection, dataset_folders
from ..errors import ConfigError, DatasetError
from ..types import Bucket, PlannedSample, Sample
from .crop import cut_share
from .flips import with_flips
from .image import image_size
from .paused_gc import paused_gc

MUCH_CROPPED = 0.25
"""Share of the area that is cut off, from which an image is told."""

_LONGEST_SIDE_STEP = 32
_AT_ONCE = 4096
"""Sizes that are compared with all buckets in one go; 150 buckets take 5 MB then."""

ControlSize = Callable[[int, int, int], tuple[int, int]]
_Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """Samples with their sizes.

    Attributes:
        samples: In the order of the scan; one that is trained at several sizes once for each, in
            the order of the resolutions.
        notes: What a person may want to know about the sizes.
    """

    samples: tuple[PlannedSample, ...]
    notes: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        """Number of samples per bucket, named as `Bucket` is written, in order of size."""
        counts = Counter(planned.bucket for planned in self.samples)
        return {str(bucket): counts[bucket] for bucket in sorted(counts)}


@paused_gc()
def plan_buckets(
    samples: Sequence[Sample],
    settings: DatasetSection,
    size_multiple: int,
    control_size: ControlSize,
) -> Plan:
    """Choose the sizes of every sample and its control images.

    Args:
        size_multiple: Both sides of what the family can train are multiples of this many pixels.
        control_size: Width, height and area wanted to the width and height of a control image;
            used when ``dataset.control_area`` is set.

    Returns:
        One planned sample for each sample and size, in the order of the samples.

    Raises:
        ConfigError: When a resolution is smaller than the multiple, or the step is none of it.
        DatasetError: When an image is smaller than the multiple and may not be enlarged.
    """
    step = bucket_step(settings, size_multiple)
    folders = [each.settings for each in dataset_folders(settings)] or [settings]
    of_folder: dict[int, list[Sample]] = {}
    for sample in samples:
        of_folder.setdefault(min(sample.folder, len(folders) - 1), []).append(sample)
    sizes = {
        folder: _sizes_of(found, folders[folder], step, size_multiple)
        for folder, found in of_folder.items()
    }
    planned: list[PlannedSample] = []
    for sample in samples:
        chosen = sizes[min(sample.folder, len(folders) - 1)]
        # Without control images all is said: 100 000 samples are planned in a second.
        sizes_of = (
            _control_buckets(sample, settings.control_area, control_size) if sample.controls else ()
        )
        for size in chosen[sample.width, sample.height]:
            bucket = size if sample.clip is None else replace(size, frames=sample.clip.frames)
            controls = (bucket,) * len(sample.controls) if sizes_of is None else sizes_of
            planned.append(PlannedSample(sample, bucket, controls))
    chosen, unflipped = with_flips(planned, settings)
    return Plan(chosen, (*_notes(planned, settings, folders), *unflipped))


def bucket_step(settings: DatasetSection, size_multiple: int) -> int:
    """The granularity of buckets in pixels.

    Raises:
        ConfigError: When the one that is asked for is none of the family's.
    """
    step = settings.bucket_step or size_multiple
    if step % size_multiple:
        lower = max(size_multiple, step // size_multiple * size_multiple)
        raise ConfigError(
            f"dataset.bucket_step: {step}",
            f"a multiple of {size_multiple}, the granularity of what the family can train",
            f"Set dataset.bucket_step to {lower} or {lower + size_multiple}, or leave it out.",
        )
    return step


def _control_buckets(
    sample: Sample, area: int | None, control_size: ControlSize
) -> tuple[Bucket, ...] | None:
    """Sizes of the control images; None where they are that of their target."""
    if area is None or sample.clip is not None:
        return None
    sizes = (control_size(*image_size(path), area) for path in sample.controls)
    return tuple(Bucket(*size) for size in sizes)


def _sizes_of(
    samples: Sequence[Sample], settings: DatasetSection, step: int, size_multiple: int
) -> dict[_Size, tuple[Bucket, ...]]:
    """The buckets of every size that images of a folder have."""
    first = {(sample.width, sample.height): sample for sample in reversed(samples)}
    sizes = list(first)
    found: dict[_Size, dict[Bucket, None]] = {size: {} for size in sizes}
    for place, resolution in enumerate([settings.resolution, *settings.more_resolutions]):
        setting = "dataset.more_resolutions" if place else "dataset.resolution"
        of_this = settings.model_copy(update={"resolution": resolution})
        if place:
            # An image is enlarged for none of the further sizes.
            of_this = of_this.model_copy(update={"upscale": False})
        listed: Sequence[Bucket] = ()
        if settings.bucketing == "area":
            listed = standard_buckets(resolution, settings.max_aspect_ratio, step, setting)
        for shape in (None, *settings.more_shapes):
            parts = [_cut(size, shape) for size in sizes]
            if listed:
                chosen = choose_buckets(parts, listed, upscale=of_this.upscale)
            else:
                chosen = [_longest_side(part, of_this, step, own=not place) for part in parts]
            for size, part, bucket in zip(sizes, parts, chosen, strict=True):
                # What is left of an image may be too small; an image itself is then an error.
                if bucket is None and not place and (not shape or min(part) >= size_multiple):
                    left = replace(first[size], width=part[0], height=part[1])
                    bucket = _own_size(left, of_this, step, size_multiple)
                if bucket is not None:
                    found[size][bucket] = None
    return {size: tuple(buckets) for size, buckets in found.items()}


def _cut(size: _Size, shape: str | None) -> _Size:
    """The largest part of an image that has a shape; all of it for None.

    Source: ``crop_to_aspect_ratio`` of the FlyMyAI LoRA trainer, which draws one of three shapes
    and the image's own each time.

    Args:
        shape: As in ``dataset.more_shapes``.
    """
    if shape is None:
        return size
    width, height = size
    across, down = map(int, shape.split(":"))
    if width * down > height * across:
        return height * across // down, height
    return width, width * down // across


def _longest_side(size: _Size, settings: DatasetSection, step: int, *, own: bool) -> Bucket | None:
    """The image's own shape, its longest side at the resolution, both cut to whole multiples.

    Source: ``image_resize`` of the FlyMyAI LoRA trainer, and what it cuts off behind it; it
    cuts right and bottom after Pillow's BICUBIC, where here it is both sides, and LANCZOS.

    Args:
        own: Whether an image that is too small keeps its own size.

    Returns:
        None where it is too small, or too narrow for one multiple.
    """
    step = math.lcm(step, _LONGEST_SIDE_STEP)
    longest = max(size)
    wanted = settings.resolution
    if longest < wanted and not settings.upscale:
        if not own:
            return None
        wanted = longest
    width, height = (side * wanted // longest // step * step for side in size)
    return Bucket(width, height) if width and height else None


def standard_buckets(
    resolution: int,
    max_aspect_ratio: float,
    size_multiple: int,
    setting: str = "dataset.resolution",
) -> tuple[Bucket, ...]:
    """List the buckets of a resolution.

    Args:
        resolution: Side in pixels of a square of the largest area.
        max_aspect_ratio: Longest over shortest side of the most extreme bucket, at least 1.
        size_multiple: Granularity in pixels.
        setting: Where the resolution was set, for the error.

    Returns:
        For each width the tallest bucket that is not above the area, the same lying on its side,
        and the largest square; sorted.

    Raises:
        ConfigError: When not even one multiple fits the area.
    """
    area = resolution * resolution
    side = resolution // size_multiple * size_multiple
    if not side:
        raise ConfigError(
            f"{setting}: {resolution}",
            f"at least {size_multiple}, the smallest size that the family can train",
            f"Set {setting} to {size_multiple} or more, or lower dataset.bucket_step where it is "
            "set.",
        )
    # With a tight bound the tallest bucket of every width may be out of it; the square never is.
    found = {Bucket(side, side)}
    for width in range(size_multiple, int(math.sqrt(area * max_aspect_ratio)) + 1, size_multiple):
        height = area // width // size_multiple * size_multiple
        if height and max(width, height) <= max_aspect_ratio * min(width, height):
            found |= {Bucket(width, height), Bucket(height, width)}
    return tuple(sorted(found))


def choose_bucket(
    sample: Sample, buckets: Sequence[Bucket], settings: DatasetSection, size_multiple: int
) -> Bucket:
    """Choose the bucket of one sample, of those that `standard_buckets` lists.

    Returns:
        As `choose_buckets`; without a fitting one, the image's own size rounded down.

    Raises:
        DatasetError: When the image is smaller than one multiple.
    """
    size = sample.width, sample.height
    (chosen,) = choose_buckets([size], buckets, upscale=settings.upscale)
    step = bucket_step(settings, size_multiple)
    return chosen or _own_size(sample, settings, step, size_multiple)


def choose_buckets(
    sizes: Sequence[tuple[int, int]], buckets: Sequence[Bucket], *, upscale: bool
) -> list[Bucket | None]:
    """Choose the bucket of every size.

    Returns:
        For each size the bucket of the nearest aspect ratio that it fills, the larger of two that
        are equally near; None where it fills none.
    """
    listed = np.array([(each.width, each.height) for each in buckets], dtype=np.float64)
    chosen: list[Bucket | None] = []
    for start in range(0, len(sizes), _AT_ONCE):
        part = np.array(sizes[start : start + _AT_ONCE], dtype=np.float64)
        places = _nearest(part, listed, upscale=upscale)
        chosen += [buckets[place] if place >= 0 else None for place in places.tolist()]
    return chosen


def _nearest(
    sizes: NDArray[np.float64], buckets: NDArray[np.float64], *, upscale: bool
) -> NDArray[np.int64]:
    """Place of each size's bucket; -1 without one."""
    aspects, areas = buckets[:, 0] / buckets[:, 1], buckets[:, 0] * buckets[:, 1]
    off = np.round(np.abs(np.log(aspects / (sizes[:, :1] / sizes[:, 1:]))), 9)
    if not upscale:
        fits = (buckets[:, 0] <= sizes[:, :1]) & (buckets[:, 1] <= sizes[:, 1:])
        off = np.where(fits, off, np.inf)
    least = off.min(axis=1, keepdims=True)
    places = np.where(off == least, areas, -1.0).argmax(axis=1)
    return np.where(np.isinf(least[:, 0]), -1, places)


def _own_size(sample: Sample, settings: DatasetSection, step: int, size_multiple: int) -> Bucket:
    least = min(sample.width, sample.height)
    if least < size_multiple:
        raise DatasetError(
            f"{sample.name} is {sample.width} x {sample.height} pixels",
            f"at least {size_multiple} x {size_multiple} pixels",
            "Take a larger image or remove this one, or set dataset.upscale: true.",
        )
    # What is too small for a coarser step has the family's own.
    multiple = step if least >= step else size_multiple
    width = sample.width // multiple
    height = sample.height // multiple
    longest = max(1, int(settings.max_aspect_ratio * min(width, height)))
    width, height = min(width, longest), min(height, longest)
    area = settings.resolution**2 // multiple**2
    while width * height > area:
        if width > height:
            width -= 1
        else:
            height -= 1
    return Bucket(width * multiple, height * multiple)


def _notes(
    planned: Sequence[PlannedSample], settings: DatasetSection, folders: Sequence[DatasetSection]
) -> tuple[str, ...]:
    notes: list[str] = []
    for resolution in dict.fromkeys(each.resolution for each in folders):
        area = resolution**2
        mine = {number for number, each in enumerate(folders) if each.resolution == resolution}
        small = dict.fromkeys(
            item.sample.name
            for item in planned
            if item.sample.width * item.sample.height < area
            and min(item.sample.folder, len(folders) - 1) in mine
        )
        if small:
            change = "enlarged to" if settings.upscale else "trained smaller than"
            notes.append(
                f"{_some(list(small))} smaller than {resolution} x {resolution} pixels: "
                f"{change} the training size"
            )
    cropped = dict.fromkeys(
        item.sample.name
        for item in planned
        if cut_share(
            (item.sample.width, item.sample.height),
            item.bucket,
            folders[min(item.sample.folder, len(folders) - 1)].crop,
        )
        > MUCH_CROPPED
    )
    if cropped:
        notes.append(f"{_some(list(cropped))} cropped by more than {MUCH_CROPPED:.0%} of the area")
    controls = Counter(len(item.control_buckets) for item in planned)
    if len(controls) > 1:
        each = ", ".join(f"{count} with {number}" for number, count in sorted(controls.items()))
        notes.append(f"samples have different numbers of control images: {each}")
    layers = Counter(len(item.sample.layers) for item in planned)
    if len(layers) > 1 and 0 not in layers:
        each = ", ".join(f"{count} with {number}" for number, count in sorted(layers.items()))
        notes.append(f"images have different numbers of layers, and never share a batch: {each}")
    return tuple(notes)


def _some(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"1 image ({names[0]}) is"
    return f"{len(names)} images (such as {names[0]}) are"
