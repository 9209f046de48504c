"""How an image lies in its bucket: what is kept, what is cut off, how much it is enlarged."""

from __future__ import annotations

from ...types import Bucket
from ..image import kept_box
from .facts import Placement

_SAME_SHAPE = 0.03
"""Difference of aspect ratios that rounding to whole pixels brings about, and no more."""


def place(size: tuple[int, int], bucket: Bucket, crop: str = "center") -> Placement:
    """Say what of an image is seen at a size.

    Args:
        size: Upright width and height in pixels.
        bucket: The size it is trained at.
        crop: ``dataset.crop``. Where the part around a mask is kept, the middle stands for it
            until the mask is read.
    """
    width, height = size
    if crop == "stretch":
        across, down = bucket.width / width, bucket.height / height
        box = (0.0, 0.0, 1.0, 1.0)
        return Placement(bucket.width, bucket.height, box, 0.0, max(across, down), across / down)
    left, top, right, bottom = kept_box(size, bucket)
    if crop == "top":
        top, bottom = 0.0, bottom - top
    kept = (right - left) * (bottom - top) / (width * height)
    box = (left / width, top / height, right / width, bottom / height)
    scale = bucket.width / (right - left)
    return Placement(bucket.width, bucket.height, box, max(0.0, 1.0 - kept), scale)


def same_shape(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two sizes have one aspect ratio, but for rounding."""
    ratio = size[0] * other[1] / max(1, size[1] * other[0])
    return abs(ratio - 1.0) <= _SAME_SHAPE
