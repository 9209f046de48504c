"""Folders of frames: ``NAME.frames`` holds the images of one clip, in order of their numbers.

They have no rate of their own: each image is one frame at whatever rate is trained. What decodes
images needs torch and is imported where it is called: a folder is listed without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from ..errors import DatasetError
from ..filesystem.file_names import FRAME_FOLDER, IMAGE_EXTENSIONS
from ..types import ClipPart

_DIGITS = re.compile(r"([0-9]+)")


def is_frame_folder(path: Path) -> bool:
    """Whether a clip is a folder of frames, by its name."""
    return path.suffix.lower() == FRAME_FOLDER


def frame_files(folder: Path) -> list[Path]:
    """The images of a folder of frames: 2 before 10, as a person numbers them.

    Raises:
        DatasetError: When it cannot be read, or holds no image.
    """
    try:
        entries = [each for each in folder.iterdir() if not each.name.startswith(".")]
    except OSError as error:
        raise _unfit(folder, f"cannot be read ({error.strerror})") from error
    files = [each for each in entries if each.suffix.lower() in IMAGE_EXTENSIONS]
    if not files:
        raise _unfit(folder, "holds no images")
    return sorted(files, key=_number)


def _number(path: Path) -> list[tuple[int, str]]:
    parts = _DIGITS.split(path.name)
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)]


def frame_count(folder: Path) -> tuple[int, int, int]:
    """How many frames a folder holds, and their upright width and height in pixels.

    Raises:
        DatasetError: When one cannot be read, or their sizes differ.
    """
    from .image_header import header_info

    files = frame_files(folder)
    headers = [header_info(each) for each in files]
    first = headers[0]
    for file, header in zip(files, headers, strict=True):
        if (header.width, header.height) != (first.width, first.height):
            sizes = f"{header.width} x {header.height} pixels, and the first {first.width} x"
            raise _unfit(folder, f"holds {file.name} of {sizes} {first.height}")
    return len(files), first.width, first.height


def read_folder(folder: Path, part: ClipPart) -> Iterator[Image.Image]:
    """Decode the frames of a part, upright and RGB.

    Raises:
        DatasetError: When one cannot be decoded, or there are too few.
    """
    from .image import open_image

    first = round(part.start * part.rate)
    files = frame_files(folder)[first : first + part.frames]
    if len(files) < part.frames:
        raise _unfit(folder, f"holds {len(files)} of the {part.frames} frames from {first} on")
    yield from map(open_image, files)


def _unfit(folder: Path, reason: str) -> DatasetError:
    return DatasetError(
        f"{folder} {reason}",
        f"a folder with the frames of one clip, images of one size, because it ends in "
        f"{FRAME_FOLDER}",
        "Export the frames again, or give the folder another name if its images are not a clip.",
    )
