"""The size at which each sample is trained.

A bucket's sides are multiples of the family's granularity and its area is at most
resolution x resolution. An image gets the bucket of the nearest aspect ratio that it can fill
without being enlarged; one that is too small for any keeps its own size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..config import DatasetSection
from ..errors import ConfigError, DatasetError
from ..types import Bucket, PlannedSample, Sample
from .flips import with_flips
from .image import image_size

_MUCH_CROPPED = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """Samples with their sizes.

    Attributes:
        samples: In the order of the scan.
        notes: What a person may want to know about the sizes.
    """

    samples: tuple[PlannedSample, ...]
    notes: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        """Number of samples per bucket, named like ``"64x64"``, in order of size."""
        counts = Counter(planned.bucket for planned in self.samples)
        return {f"{bucket.width}x{bucket.height}": counts[bucket] for bucket in sorted(counts)}


def plan_buckets(
    samples: Sequence[Sample],
    settings: DatasetSection,
    size_multiple: int,
    control_size: Callable[[int, int, int], tuple[int, int]],
) -> Plan:
    """Choose a size for every sample and its control images.

    Args:
        samples: What a scan found.
        settings: Resolution, most extreme aspect ratio, and whether images may be enlarged.
        size_multiple: Both sides of a bucket are multiples of this many pixels.
        control_size: Width, height and area wanted to the width and height of a control image;
            used when ``dataset.control_area`` is set.

    Returns:
        One planned sample per sample, in the same order.

    Raises:
        ConfigError: When the resolution is smaller than the multiple.
        DatasetError: When an image is smaller than the multiple and may not be enlarged.
    """
    buckets = standard_buckets(settings.resolution, settings.max_aspect_ratio, size_multiple)
    area = settings.control_area
    planned = []
    for sample in samples:
        bucket = choose_bucket(sample, buckets, settings, size_multiple)
        controls = (bucket,) * len(sample.controls)
        if area is not None:
            sizes = (control_size(*image_size(path), area) for path in sample.controls)
            controls = tuple(Bucket(*size) for size in sizes)
        planned.append(PlannedSample(sample, bucket, controls))
    chosen, unflipped = with_flips(planned, settings)
    return Plan(chosen, (*_notes(planned, settings), *unflipped))


def standard_buckets(
    resolution: int, max_aspect_ratio: float, size_multiple: int
) -> tuple[Bucket, ...]:
    """List the buckets of a resolution.

    Args:
        resolution: Side in pixels of a square of the largest area.
        max_aspect_ratio: Longest over shortest side of the most extreme bucket, at least 1.
        size_multiple: Granularity in pixels.

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
            f"dataset.resolution: {resolution}",
            f"at least {size_multiple}, the smallest size that the family can train",
            f"Set dataset.resolution to {size_multiple} or more.",
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
        The fitting bucket of the nearest aspect ratio, the larger of two that are equally near;
        without a fitting one, the image's own size rounded down.

    Raises:
        DatasetError: When the image is smaller than one multiple.
    """
    aspect = sample.width / sample.height

    def distance(bucket: Bucket) -> tuple[float, int]:
        off = abs(math.log(bucket.width / bucket.height / aspect))
        return round(off, 9), -bucket.width * bucket.height

    fitting = [
        bucket
        for bucket in buckets
        if settings.upscale or (bucket.width <= sample.width and bucket.height <= sample.height)
    ]
    if fitting:
        return min(fitting, key=distance)
    return _own_size(sample, settings, size_multiple)


def _own_size(sample: Sample, settings: DatasetSection, size_multiple: int) -> Bucket:
    if min(sample.width, sample.height) < size_multiple:
        raise DatasetError(
            f"{sample.name} is {sample.width} x {sample.height} pixels",
            f"at least {size_multiple} x {size_multiple} pixels",
            "Take a larger image or remove this one, or set dataset.upscale: true.",
        )
    width = sample.width // size_multiple
    height = sample.height // size_multiple
    longest = max(1, int(settings.max_aspect_ratio * min(width, height)))
    width, height = min(width, longest), min(height, longest)
    area = settings.resolution**2 // size_multiple**2
    while width * height > area:
        if width > height:
            width -= 1
        else:
            height -= 1
    return Bucket(width * size_multiple, height * size_multiple)


def _notes(planned: Sequence[PlannedSample], settings: DatasetSection) -> tuple[str, ...]:
    notes = []
    area = settings.resolution**2
    small = [item.sample.name for item in planned if item.sample.width * item.sample.height < area]
    if small:
        change = "enlarged to" if settings.upscale else "trained smaller than"
        notes.append(
            f"{_some(small)} smaller than {settings.resolution} x {settings.resolution} pixels: "
            f"{change} the training size"
        )
    cropped = [item.sample.name for item in planned if _cropped_share(item) > _MUCH_CROPPED]
    if cropped:
        notes.append(f"{_some(cropped)} cropped by more than {_MUCH_CROPPED:.0%} of the area")
    controls = Counter(len(item.control_buckets) for item in planned)
    if len(controls) > 1:
        each = ", ".join(f"{count} with {number}" for number, count in sorted(controls.items()))
        notes.append(f"samples have different numbers of control images: {each}")
    layers = Counter(len(item.sample.layers) for item in planned)
    if len(layers) > 1 and 0 not in layers:
        each = ", ".join(f"{count} with {number}" for number, count in sorted(layers.items()))
        notes.append(f"images have different numbers of layers, and never share a batch: {each}")
    return tuple(notes)


def _cropped_share(item: PlannedSample) -> float:
    """Share of the image's area that does not reach the bucket, 0 to 1."""
    sample, bucket = item.sample, item.bucket
    scale = max(bucket.width / sample.width, bucket.height / sample.height)
    return 1.0 - bucket.width * bucket.height / (sample.width * sample.height * scale * scale)


def _some(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"1 image ({names[0]}) is"
    return f"{len(names)} images (such as {names[0]}) are"
