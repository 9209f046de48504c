"""An image file, opened by the decoder of what it holds, or why there is none.

What a file holds decides, whatever its name says: phones write HEIC as ``.jpg``, and the web AVIF.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError, features

from ..errors import DatasetError

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""What is looked for beside AVIF and HEIC; fewer decoders are fewer surprises."""

READABLE_IMAGES = "PNG, JPEG, WebP, AVIF, HEIC or BMP"
"""What is read, in words."""

MAX_PIXELS = 178_956_970
"""Larger images are taken for decompression bombs; twice Pillow's own threshold of warning."""

_MOST_TOLD = 32 << 20  # bytes in front of the pixels of a JPEG; colour profiles take some
_JPEG_ENDS = (0xD9, 0xDA)
_FIRST = 512
_REPLACE = "Save the image again with an image editor, or set dataset.unreadable: skip."

_BRANDS = {
    "AVIF": {b"avif", b"avis"},
    "HEIC": {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"},
}
"""Brands of ISO 23008-12 and of AVIF to what Pillow's decoders call them; the first that fits."""

_DECODERS = {"AVIF": "pillow 11.3 or newer", "HEIC": "pillow-heif"}
_INSTALL = {"AVIF": "pip install --upgrade pillow", "HEIC": "pip install pillow-heif"}

_OTHERS = {
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"<!doctype html": "a web page, such as that of a login",
    b"<html": "a web page, such as that of a login",
    b"version https://git-lfs": "a pointer of Git LFS (git lfs pull fetches the image)",
}
"""Beginnings of what is often found in the place of an image, in lower case where it is text."""

# Decoders raise whatever the broken bytes lead them into.
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    EOFError,
    struct.error,
    zlib.error,
)


class NoDecoderError(DatasetError):
    """An image of a type that a package reads which is not installed.

    Attributes:
        cure: How to install it, for all such files at once.
    """

    def __init__(self, path: Path | str, kind: str) -> None:
        self.cure = f"To read {kind} install {_DECODERS[kind]}: {_INSTALL[kind]}."
        expected = f"{_DECODERS[kind]}, which reads it"
        super().__init__(f"{path} is {kind}", expected, f"{self.cure} {_REPLACE}")


@contextmanager
def opened_image(path: Path, descriptor: int | None = None) -> Iterator[Image.Image]:
    """Open an image; what fails while it is used is told as well.

    Args:
        descriptor: Of the file, at its beginning, where it is open already.

    Raises:
        DatasetError: When the file is not a readable image or is implausibly large.
    """
    try:
        with _file(path, descriptor) as file, decoded(file, path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large(path, f"{image.width} x {image.height} pixels")
            yield image
    except DatasetError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(path, str(error)) from error
    except BROKEN as error:
        # Pillow's own words name an object of Python's.
        unknown = isinstance(error, UnidentifiedImageError)
        words = " ".join(str(error).split()) or type(error).__name__
        found = what_is_wrong(path, "its content is not an image" if unknown else words)
        raise DatasetError(found, f"a whole {READABLE_IMAGES} image", _REPLACE) from error


def decoded(file: BinaryIO, path: Path | str) -> Image.Image:
    """The image of an open file, named for messages; no pixel is decoded.

    Raises:
        NoDecoderError: When what reads it is not installed.
        Exception: Whatever the decoder raises.
    """
    kind = _boxed_kind(file)
    if kind == "HEIC":
        try:
            # Not registered with Pillow, which is the host's.
            from pillow_heif import HeifImageFile
        except ImportError as error:
            raise NoDecoderError(path, kind) from error
        return HeifImageFile(file)
    if kind and not ("avif" in features.modules and features.check("avif")):
        raise NoDecoderError(path, kind)
    return Image.open(_checked(file), formats=(kind,) if kind else _FORMATS)


def is_cut_short(path: Path, format_name: str | None) -> bool:
    """Whether an image's file ends before it does, as far as its format says where that is."""
    data = path.read_bytes()
    if format_name == "PNG":
        return b"IEND\xaeB`\x82" not in data
    if format_name in {"JPEG", "MPO"}:
        return b"\xff\xd9" not in data[-(1 << 16) :]
    if format_name == "WEBP":
        return len(data) < int.from_bytes(data[4:8], "little") + 8
    if format_name == "BMP":
        return len(data) < int.from_bytes(data[2:6], "little")
    return False


def _boxed_kind(file: BinaryIO) -> str:
    """AVIF or HEIC, where the file says that it is one; else nothing. It is left at its start."""
    head = file.read(_FIRST)
    file.seek(0)
    if head[4:8] != b"ftyp":
        return ""
    size = min(int.from_bytes(head[:4], "big"), len(head))
    brands = {head[place : place + 4] for place in (8, *range(16, size - 3, 4))}
    return next((kind for kind, known in _BRANDS.items() if known & brands), "")


def _file(path: Path, descriptor: int | None) -> BinaryIO:
    if descriptor is None:
        return path.open("rb")
    return os.fdopen(descriptor, "rb", closefd=False)


def _checked(file: BinaryIO) -> BinaryIO:
    """See that a JPEG has no endless description: Pillow copies all of it for each part.

    Raises:
        ValueError: When it has.
    """
    place, length_of = 2, 0
    if file.read(2) == b"\xff\xd8":
        while len(head := file.read(4)) == 4 and head[0] == 0xFF and head[1] not in _JPEG_ENDS:
            length = int.from_bytes(head[2:], "big")
            length_of += length
            if length_of > _MOST_TOLD:
                raise ValueError(f"its pixels come behind more than {_MOST_TOLD} bytes")
            place += 2 + length
            file.seek(place)
    file.seek(0)
    return file


def _too_large(path: Path, size: str) -> DatasetError:
    return DatasetError(
        f"{path} claims an implausible size ({size})",
        f"at most {MAX_PIXELS} pixels",
        "Make the image smaller, or set dataset.unreadable: skip.",
    )


def what_is_wrong(path: Path, reason: str, kind: str = "an image") -> str:
    """Why a file cannot be read: what it is instead, else the reason that a decoder gave."""
    if path.is_dir():
        return f"{path} is a folder"
    try:
        if not path.stat().st_size:
            return f"{path} is empty (0 bytes)"
        with path.open("rb") as file:
            head = file.read(_FIRST)
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        return f"{path} cannot be read as {kind} ({error.strerror})"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for start, name in _OTHERS.items():
        if start in (head[: len(start)], text[: len(start)]):
            reason = f"its content is {name}"
    return f"{path} cannot be read as {kind} ({reason})"
