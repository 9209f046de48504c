"""A run with everything on whose state has to survive a stop, on a few small images with masks."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runs import merge, noisy_images

from tests.fixtures.tables import table

EVERYTHING: dict[str, Any] = table(__file__, "everything")


def everything(images: Path, **overrides: Any) -> dict[str, Any]:
    """Settings of a run with everything on.

    Args:
        images: Where its images are, as `masked_images` has made them.
        **overrides: Sections that differ.
    """
    settings = merge(EVERYTHING, {"dataset": {"path": str(images)}})
    return merge(settings, overrides)


def masked_images(folder: Path, count: int = 8) -> Path:
    """Noisy images with captions; all but the last have a mask."""
    noisy_images(folder, count)
    for number in range(count - 1):
        mask = np.zeros((64, 64), np.uint8)
        mask[16:48, 8 * number : 8 * number + 16] = 255
        Image.fromarray(mask).save(folder / f"{number}_mask.png")
    return folder
