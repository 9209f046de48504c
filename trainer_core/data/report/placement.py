"""How an image lies in its bucket: what is kept, what is cut off, how much it is enlarged."""

from __future__ import annotations

from ...types import Bucket
from ..crop import CENTER, Crop, cut_share, kept_box
from .dataset_report import Placement


def place(
    size: tuple[int, int],
    bucket: Bucket,
    crop: Crop = "center",
    focus: tuple[float, float] = CENTER,
) -> Placement:
    """Say what of an image is seen at a size.

    Args:
        size: Upright width and height in pixels.
        bucket: The size it is trained at.
        crop: As ``dataset.crop``.
        focus: Middle of its mask, where that decides; the image's until the mask is read.
    """
    width, height = size
    left, top, right, bottom = kept_box(size, bucket, crop, focus)
    across, down = bucket.width / (right - left), bucket.height / (bottom - top)
    return Placement(
        width=bucket.width,
        height=bucket.height,
        crop=(left / width, top / height, right / width, bottom / height),
        cut=cut_share(size, bucket, crop),
        scale=max(across, down),
        stretch=across / down,
        frames=bucket.frames,
    )
