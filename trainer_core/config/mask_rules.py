"""Settings of masks, crops and mirrored images that contradict each other.

As in `dataset_rules`: what was found, what was expected, what to do.
"""

from __future__ import annotations

from collections.abc import Iterator

from .dataset import DatasetSection


def mask_contradictions(dataset: DatasetSection) -> Iterator[tuple[str, str, str]]:
    """What contradicts itself in ``dataset.mask``, ``dataset.crop`` and ``dataset.flip_except``."""
    mask = dataset.mask
    if not (mask.foreground or mask.background):
        yield (
            "dataset.mask.foreground and dataset.mask.background are 0",
            "at least one of them above 0",
            "Raise dataset.mask.foreground; nothing of an image with a mask is trained otherwise.",
        )
    if mask.source == "none":
        if dataset.crop == "mask":
            yield (
                "dataset.crop is mask and dataset.mask.source is none",
                "masks that say what of an image is kept",
                "Set dataset.mask.source to auto, or dataset.crop to center.",
            )
        if mask.invert:
            yield (
                "dataset.mask.invert is true and dataset.mask.source is none",
                "masks that can be inverted",
                "Set dataset.mask.source to auto, or dataset.mask.invert to false.",
            )
    blank = [number for number, word in enumerate(dataset.flip_except) if not word.strip()]
    if blank:
        yield (
            f"dataset.flip_except[{blank[0]}] is empty",
            "words of captions",
            "Remove it; [] lets every image be mirrored.",
        )
