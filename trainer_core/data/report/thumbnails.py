"""Small images for a page or a sheet, made in threads; which ones are shown of very many."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from ...errors import DatasetError
from ...types import Bucket, ClipPart
from ..clips import read_frames
from ..masks import masked_preview, read_mask
from .dataset_report import DatasetReport, ReportedImage
from .image_fingerprints import file_bytes, small_image

_THREADS = 8
_QUALITY = 70


def chosen_images(report: DatasetReport, most: int) -> tuple[ReportedImage, ...]:
    """Which images are shown, in order: first some of each finding, then evenly of each bucket."""
    if len(report.images) <= most:
        return report.images
    place = {image.name: number for number, image in enumerate(report.images)}
    places = [[place[n] for n in each.names if n in place] for each in report.findings]
    taken = _in_turns([each for each in places if each], most * 2 // 3)
    buckets: dict[Bucket, list[int]] = {}
    for number, image in enumerate(report.images):
        buckets.setdefault(image.bucket, []).append(number)
    rest = [_evenly(each, most) for each in buckets.values()]
    taken |= _in_turns(rest, most - len(taken), taken)
    return tuple(report.images[number] for number in sorted(taken))


def _evenly(numbers: Sequence[int], most: int) -> list[int]:
    step = max(1, len(numbers) // most)
    return list(numbers[::step])


def _in_turns(lists: Sequence[Sequence[int]], most: int, known: set[int] | None = None) -> set[int]:
    """One of each list, then the next of each, until there are enough."""
    taken: set[int] = set()
    for turn in range(max(map(len, lists), default=0)):
        for each in lists:
            if len(taken) >= most:
                return taken
            if turn < len(each) and each[turn] not in (known or ()):
                taken.add(each[turn])
    return taken


def thumbnails(images: Sequence[ReportedImage], side: int) -> Mapping[str, tuple[Image.Image, ...]]:
    """Make the images small, `side` pixels at most; one that cannot be read is not in it.

    Returns:
        The name of each to it, or to the first, the middle and the last frame of a clip.
    """
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        made = pool.map(lambda image: _small(image.path, image.clip, side), images)
        return {image.name: small for image, small in zip(images, made, strict=True) if small}


def _small(path: Path, clip: ClipPart | None, side: int) -> tuple[Image.Image, ...]:
    small: list[Image.Image] = []
    try:
        for image in _shown(path, clip, side):
            image.thumbnail((side, side), Image.Resampling.LANCZOS)
            small.append(image)
    except Exception:  # noqa: BLE001 - decoders raise whatever broken bytes lead them into
        return ()
    return tuple(small)


def _shown(path: Path, clip: ClipPart | None, side: int) -> Iterator[Image.Image]:
    if clip is None:
        # Twice as large and then made small, so that a draft's rough pixels are not seen.
        yield small_image(file_bytes(path), side * 2)
    else:
        for number in (0, (clip.frames - 1) // 2, clip.frames - 1):
            start = clip.start + number / clip.rate
            yield from read_frames(path, ClipPart(start, 1, clip.rate))


def masked_thumbnail(
    image: ReportedImage, small: Image.Image | None, side: int
) -> Image.Image | None:
    """An image with what does not count tinted; None without a mask that can be read.

    Args:
        small: It made small, where it could be.
        side: The longer side of the result in pixels.
    """
    if image.mask is None or small is None:
        return None
    alpha, size = image.mask.path == image.path, (image.width, image.height)
    try:
        mask = read_mask(
            image.mask.path, size, "first_frame", transparency=alpha, invert=image.mask.inverted
        )
    except DatasetError:
        return None
    shown = small.copy()
    shown.thumbnail((side, side))
    return masked_preview(shown, mask)


def embedded(image: Image.Image) -> str:
    """An image as the text of a ``src``, WebP."""
    written = io.BytesIO()
    image.save(written, format="WEBP", quality=_QUALITY, method=2)
    return "data:image/webp;base64," + base64.b64encode(written.getvalue()).decode("ascii")
