"""A run with everything on whose state has to survive a stop, on a few small images with masks."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runs import merge, noisy_images

EVERYTHING: dict[str, Any] = {
    "adapter": {
        "kind": "lora",
        "rank": 4,
        "dora": True,
        "dropout": 0.1,
        "rank_dropout": 0.2,
        "module_dropout": 0.2,
    },
    "dataset": {
        "caption_dropout": 0.2,
        "flip": True,
        "preservation": {"share": 0.5, "prompts": ["a red circle"], "count": 2, "steps": 2},
        "validation": {"share": 0.25, "every": 2, "most": 2, "noise_levels": 1},
    },
    "training": {
        "max_weight_norm": 1.0,
        "ema": {"decay": 0.9, "export": "both", "post_hoc": True},
        "loss": {"weighting": "learned"},
        "sigma": {"stratified": True},
    },
    "preview": {
        "every": 2,
        "prompts": ["a red circle on blue"],
        "width": 64,
        "height": 64,
        "steps": 1,
    },
}
"""Accumulation comes from `run_config`."""


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
