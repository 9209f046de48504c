"""Files of previews: an image is a PNG, a clip an animated WebP, which every browser plays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

_IMAGE, _CLIP = ".png", ".webp"
_QUALITY = 90
"""Of WebP, up to 100: frames of a clip are looked at while they move."""


def preview_ending(frames: int) -> str:
    """Extension of the file of a preview of so many frames."""
    return _IMAGE if frames == 1 else _CLIP


def save_preview(frames: Sequence[Image.Image], target: Path, rate: float) -> None:
    """Write a preview.

    Args:
        frames: The image, or the frames of a clip.
        rate: Frames per second of a clip.
    """
    first, *others = frames
    if not others:
        first.save(target, format="PNG")
        return
    # Ends in whole milliseconds, so that rounding does not add up.
    ends = [round(1000 * number / rate) for number in range(len(frames) + 1)]
    durations = [end - begin for begin, end in itertools.pairwise(ends)]
    first.save(
        target,
        format="WEBP",
        save_all=True,
        append_images=others,
        duration=durations,
        loop=0,
        quality=_QUALITY,
    )


def preview_files(folder: Path) -> list[Path]:
    """The previews in the folder of a step, by the number of their prompt."""
    found = [
        path
        for path in folder.iterdir()
        if path.suffix in {_IMAGE, _CLIP} and path.stem.isascii() and path.stem.isdigit()
    ]
    return sorted(found, key=lambda path: int(path.stem))
