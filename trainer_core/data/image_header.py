"""Sizes of common images straight from their first bytes.

Pillow makes an object of every header, which for a large folder takes longer than everything else.
What is read here is only what is plain: anything unusual (metadata that may turn the image,
palettes with transparency, several frames, a header that is not as it should be) is left to
Pillow, so that what comes out is the same (`image.image_info`).

Sources: PNG, third edition, 5 and 11.2; ITU-T T.81, B.1 and B.2; RFC 9649 (WebP), 2.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from .image import ImageInfo, image_info
from .image_decoders import MAX_PIXELS

_FIRST = 4096  # bytes that are read at once; most headers are shorter
_LARGEST = 1 << 16  # bytes of a part of a header that is looked at
_MOST_PARTS = 10_000
_PLAIN_PIXELS = min(MAX_PIXELS, 80_000_000)  # of more than that Pillow has something to say

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_ALPHA = (4, 6)
# Parts that say nothing of size, transparency or direction, to the bytes that they need.
_PNG_PLAIN = {b"PLTE": 0, b"sRGB": 1, b"gAMA": 4, b"pHYs": 9, b"sBIT": 0, b"bKGD": 0, b"tIME": 0}
_PNG_TEXTS = {b"eXIf", b"iTXt", b"tEXt", b"zTXt"}

_JPEG_FRAMES = (0xC0, 0xC1, 0xC2)
_JPEG_SKIPPED = (0xC4, 0xDD)
_EXIF = b"Exif\0\0"
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_ORIENTATION = 0x0112
_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class _UnusualError(Exception):
    """Pillow has to look."""


def header_info(path: Path) -> ImageInfo:
    """What an image's header says; Pillow is asked where it is unusual. The file is opened once.

    Raises:
        DatasetError: As `image.image_info`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _BINARY)
    except OSError:
        return image_info(path)  # which says why it cannot be opened
    try:
        found = plain_header(descriptor)
        if found is None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            found = image_info(path, descriptor)
        return found
    finally:
        os.close(descriptor)


def plain_header(descriptor: int) -> ImageInfo | None:
    """What an image's header says, of a plain PNG, JPEG or WebP file.

    Returns:
        What `image.image_info` would give, or None where Pillow has to look: the file is something
        else or unusual, is damaged, or cannot be read.
    """
    try:
        return _plain(_Bytes(descriptor))
    except (_UnusualError, OSError, struct.error, IndexError):
        return None


class _Bytes:
    """The content of a file; its first bytes are read once."""

    __slots__ = ("_descriptor", "first")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.first = os.read(descriptor, _FIRST)

    def at(self, place: int, count: int) -> bytes:
        """So many bytes from a place on; fewer at the end of the file."""
        if place + count <= len(self.first):
            return self.first[place : place + count]
        if count > _LARGEST:
            raise _UnusualError
        os.lseek(self._descriptor, place, os.SEEK_SET)
        return os.read(self._descriptor, count)

    def whole(self, place: int, count: int) -> bytes:
        """As `at`, where all of them have to be there."""
        found = self.at(place, count)
        if len(found) < count:
            raise _UnusualError
        return found

    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._descriptor).st_size


def _plain(content: _Bytes) -> ImageInfo:
    first = content.first
    if first.startswith(_PNG):
        found = _png(content)
    elif first.startswith(b"\xff\xd8\xff"):
        found = _jpeg(content)
    elif first.startswith(b"RIFF") and first[8:12] == b"WEBP":
        found = _webp(content)
    else:
        raise _UnusualError
    if not 0 < found.width * found.height <= _PLAIN_PIXELS:
        raise _UnusualError
    return found


def _png(content: _Bytes) -> ImageInfo:
    length, kind = struct.unpack(">I4s", content.whole(8, 8))
    if kind != b"IHDR" or length != 13:
        raise _UnusualError
    width, height, depth, colour, packed, filtered, laced = struct.unpack(
        ">IIBBBBB", _checked(content, 8, 13)
    )
    if depth not in _PNG_DEPTHS.get(colour, ()) or packed or filtered or laced > 1:
        raise _UnusualError
    if max(width, height) >= 1 << 31:
        raise _UnusualError
    place = 8 + 25
    for _ in range(_MOST_PARTS):
        length, kind = struct.unpack(">I4s", content.whole(place, 8))
        if kind == b"IDAT":
            _require_nothing_behind(content, place)
            return ImageInfo(width, height, False, colour in _PNG_ALPHA)
        if length < _PNG_PLAIN.get(kind, 1 << 32) or length > _LARGEST - 12:
            raise _UnusualError
        _checked(content, place, length)
        place += length + 12
    raise _UnusualError


def _checked(content: _Bytes, place: int, length: int) -> bytes:
    """What is in a part of a PNG, whose checksum has to fit."""
    part = content.whole(place + 4, length + 8)
    if zlib.crc32(part[: length + 4]) != int.from_bytes(part[length + 4 :], "big"):
        raise _UnusualError
    return part[4 : length + 4]


def _require_nothing_behind(content: _Bytes, place: int) -> None:
    """See that no metadata stands behind the pixels; it may turn the image."""
    for _ in range(_MOST_PARTS):
        head = content.at(place, 8)
        if len(head) < 8 or head[4:] == b"IEND":
            return
        if head[4:] in _PNG_TEXTS:
            raise _UnusualError
        place += int.from_bytes(head[:4], "big") + 12
    raise _UnusualError


def _jpeg(content: _Bytes) -> ImageInfo:
    place, size, tags, described = 2, None, None, False
    for _ in range(_MOST_PARTS):
        mark, code, length = struct.unpack(">BBH", content.whole(place, 4))
        if mark != 0xFF or length < 2:
            raise _UnusualError
        part = content.whole(place + 4, length - 2)
        place += length + 2
        if code in _JPEG_FRAMES and size is None:
            size = _jpeg_size(part)
        elif code == 0xE1 and part.startswith(_EXIF) and tags is None:
            tags = _orientation_tag(part)
        elif code == 0xE1 and part.startswith(_XMP):
            described = True
        elif code == 0xDB:
            _require_tables(part)
        elif code == 0xDA:
            # A second description counts where the tags say nothing of the direction.
            if size is None or (described and not tags):
                raise _UnusualError
            width, height = size if (tags or 1) < 5 else (size[1], size[0])
            return ImageInfo(width, height, False)
        elif not _is_plain_segment(code, part):
            raise _UnusualError
    raise _UnusualError


def _is_plain_segment(code: int, part: bytes) -> bool:
    """Whether a part of a JPEG says nothing that matters, and Pillow reads it without trouble."""
    if code == 0xE0:
        return part.startswith(b"JFIF\0") and len(part) >= 12
    if code == 0xE2:
        return part.startswith(b"ICC_PROFILE\0") and len(part) > 13
    if code == 0xEE:
        return part.startswith(b"Adobe") and len(part) >= 12
    return code in _JPEG_SKIPPED or code == 0xFE


def _jpeg_size(part: bytes) -> tuple[int, int]:
    depth, height, width, layers = struct.unpack(">BHHB", part[:6])
    if depth != 8 or layers not in (1, 3, 4) or len(part) != 6 + 3 * layers:
        raise _UnusualError
    return width, height


def _require_tables(part: bytes) -> None:
    place = 0
    while place < len(part):
        place += 1 + 64 * (1 if part[place] < 16 else 2)
    if place != len(part):
        raise _UnusualError


def _orientation_tag(part: bytes) -> int:
    """The orientation in the first folder of tags, 1 to 8; 0 where there is none."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(part[6:10])
    if order is None:
        raise _UnusualError
    (start,) = struct.unpack_from(f"{order}I", part, 10)
    (count,) = struct.unpack_from(f"{order}H", part, 6 + start)
    found = 0
    for number in range(count):
        place = 8 + start + 12 * number
        tag, kind, values, value = struct.unpack_from(f"{order}HHIH2x", part, place)
        if tag != _ORIENTATION:
            continue
        # Written twice, of another type or out of range: Pillow decides.
        if found or kind != 3 or values != 1 or not 1 <= value <= 8:
            raise _UnusualError
        found = value
    return found


def _webp(content: _Bytes) -> ImageInfo:
    whole, kind, length = struct.unpack("<I4x4sI", content.whole(4, 16))
    # Pillow refuses a file that is cut short; what is behind the image would be read, too.
    if whole + 8 > content.size() or length + (length & 1) + 12 != whole:
        raise _UnusualError
    if kind == b"VP8 ":
        return _lossy_webp(content.whole(20, 10), length)
    if kind == b"VP8L":
        return _lossless_webp(content.whole(20, 5))
    raise _UnusualError


def _lossy_webp(head: bytes, length: int) -> ImageInfo:
    bits = int.from_bytes(head[:3], "little")
    shown, profile, first = bits >> 4 & 1, bits >> 1 & 7, bits >> 5
    if bits & 1 or not shown or profile > 3 or first >= length or head[3:6] != b"\x9d\x01\x2a":
        raise _UnusualError
    width, height = struct.unpack("<HH", head[6:])
    return ImageInfo(width & 0x3FFF, height & 0x3FFF, False)


def _lossless_webp(head: bytes) -> ImageInfo:
    bits = int.from_bytes(head[1:], "little")
    if head[0] != 0x2F or bits >> 29:
        raise _UnusualError
    return ImageInfo((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, False, bool(bits >> 28 & 1))
