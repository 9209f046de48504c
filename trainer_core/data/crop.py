"""Which part of an image ``dataset.crop`` keeps at a size; crops and resizes images to it."""

from __future__ import annotations

import math
from typing import Literal

from PIL import Image

from ..types import Bucket

Crop = Literal["center", "top", "mask", "stretch"]
"""As ``dataset.crop``."""

CENTER = (0.5, 0.5)
"""The middle of an image, as shares of its width and height."""


def fit_to_bucket(
    image: Image.Image,
    bucket: Bucket,
    crop: Crop = "center",
    focus: tuple[float, float] = CENTER,
) -> Image.Image:
    """Resize what `kept_box` keeps of an image to the bucket (LANCZOS).

    Pillow weighs the colours of an RGBA image by its alpha: what is hidden bleeds into nothing.
    """
    box = kept_box(image.size, bucket, crop, focus)
    if box[2] - box[0] == bucket.width and box[3] - box[1] == bucket.height:
        return image.crop((int(box[0]), int(box[1]), int(box[2]), int(box[3])))
    return image.resize((bucket.width, bucket.height), Image.Resampling.LANCZOS, box=box)


def kept_box(
    size: tuple[int, int],
    bucket: Bucket,
    crop: Crop = "center",
    focus: tuple[float, float] = CENTER,
) -> tuple[float, float, float, float]:
    """What `fit_to_bucket` keeps of an image: the largest part of the bucket's shape.

    Args:
        crop: As ``dataset.crop``: ``center`` and ``top`` cut off evenly to the left and right,
            ``mask`` comes as near as the image allows to having ``focus`` in the middle,
            ``stretch`` keeps all.
        focus: A place of the image, as shares of its width and height.

    Returns:
        Left, top, right, bottom in the image's pixels; whole ones where nothing is resized.
    """
    width, height = size
    if crop == "stretch":
        return 0, 0, width, height
    scale = max(bucket.width / width, bucket.height / height)
    kept = bucket.width / scale, bucket.height / scale
    left, top = _start(size, kept, crop, focus)
    if scale == 1.0:
        # Cutting on whole pixels: half a pixel's shift would blur the image.
        whole = round if crop == "mask" else math.floor
        left, top = whole(left), whole(top)
        return left, top, left + bucket.width, top + bucket.height
    right, bottom = min(left + kept[0], width), min(top + kept[1], height)
    return max(left, 0.0), max(top, 0.0), right, bottom


def cut_share(size: tuple[int, int], bucket: Bucket, crop: Crop) -> float:
    """Share of an image's area that `kept_box` leaves out, 0 to 1; 4:3 in a square loses 0.25."""
    across, down = bucket.width * size[1], bucket.height * size[0]
    return 0.0 if crop == "stretch" else 1.0 - min(across, down) / max(across, down)


def crop_and_focus(
    crop: Crop, focus: tuple[float, float] | None
) -> tuple[Crop, tuple[float, float]]:
    """Crop and focus for `kept_box` where a person may have moved what is kept."""
    return (crop, CENTER) if focus is None or crop == "stretch" else ("mask", focus)


def _start(
    size: tuple[int, int], kept: tuple[float, float], crop: Crop, focus: tuple[float, float]
) -> tuple[float, float]:
    """Where what is kept begins, from the left and from the top."""
    spare = size[0] - kept[0], size[1] - kept[1]
    if crop == "mask":
        left, top = (
            min(max(share * side - part / 2, 0.0), rest)
            for share, side, part, rest in zip(focus, size, kept, spare, strict=True)
        )
        return left, top
    return spare[0] / 2, 0.0 if crop == "top" else spare[1] / 2


def resize_exact(image: Image.Image, width: int, height: int) -> Image.Image:
    """Resize an image to a size in pixels without keeping its aspect ratio (LANCZOS).

    Source: the default mode of Diffusers' ``VaeImageProcessor.resize``.
    """
    return image.resize((width, height), Image.Resampling.LANCZOS)
