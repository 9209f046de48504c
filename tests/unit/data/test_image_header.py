"""Sizes read straight from headers, against Pillow: the same on every file, or left to it."""

import io
import random
import struct
import zlib

import pytest
from PIL import Image, PngImagePlugin

from tests.fixtures.opened_files import opened_files
from trainer_core.data.image import image_info
from trainer_core.data.image_header import header_info, plain_header
from trainer_core.errors import DatasetError

SIZE = (37, 21)


def encoded(kind: str, mode: str = "RGB", size=SIZE, **options) -> bytes:
    image = Image.new(mode, size)
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


def exif(value: int, *, extra: bool = False) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = value
    if extra:
        tags[0x010E], tags[0x0132] = "words", "2020:01:01 00:00:00"
    return tags.tobytes()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def behind_pixels(kind: bytes, content: bytes) -> bytes:
    whole = encoded("PNG")
    end = whole.index(b"IEND") - 4
    return whole[:end] + png_chunk(kind, content) + whole[end:]


def described(value: int) -> bytes:
    """A JPEG whose second description alone says how it is turned."""
    return encoded("JPEG", xmp=f'<x tiff:Orientation="{value}"/>'.encode())


def texts(**words: str) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    for name, text in words.items():
        info.add_text(name, text)
    return info


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", SIZE, colour) for colour in ("red", "blue")]
    written = io.BytesIO()
    frames[0].save(written, kind, save_all=True, append_images=frames[1:])
    return written.getvalue()


PLAIN = {
    **{f"png {mode}": encoded("PNG", mode) for mode in ("1", "L", "LA", "RGB", "RGBA", "I;16")},
    "png P": encoded("PNG", "P"),
    "png dpi": encoded("PNG", dpi=(72, 72)),
    "jpeg RGB": encoded("JPEG"),
    "jpeg L": encoded("JPEG", "L"),
    "jpeg CMYK": encoded("JPEG", "CMYK"),
    "jpeg progressive": encoded("JPEG", progressive=True),
    "jpeg comment": encoded("JPEG", comment=b"hello"),
    "jpeg profile": encoded("JPEG", icc_profile=b"x" * 200_000),
    **{f"jpeg turned {value}": encoded("JPEG", exif=exif(value)) for value in range(1, 9)},
    "jpeg many tags": encoded("JPEG", exif=exif(6, extra=True)),
    "jpeg turned and described": encoded(
        "JPEG", exif=exif(6), xmp=b'<x tiff:Orientation="3"/>'
    ),
    "webp": encoded("WEBP"),
    "webp lossless": encoded("WEBP", lossless=True),
    "webp lossless alpha": encoded("WEBP", "RGBA", lossless=True),
    "webp odd": encoded("WEBP", size=(1, 7)),
}  # fmt: skip
"""Files that need no Pillow."""

UNUSUAL = {
    "png transparent colour": encoded("PNG", "RGB", transparency=(0, 0, 0)),
    "png transparent palette": encoded("PNG", "P", transparency=0),
    "png text": encoded("PNG", pnginfo=texts(Title="a")),
    "png turned": encoded("PNG", exif=exif(6)),
    "png turned behind": behind_pixels(b"eXIf", exif(6)[6:]),
    "png animated": animated("PNG"),
    "webp animated": animated("WEBP"),
    "webp alpha": encoded("WEBP", "RGBA"),
    "webp turned": encoded("WEBP", exif=exif(6)),
    "jpeg described": described(6),
    "jpeg orientation 9": encoded("JPEG", exif=exif(9)),
    "bmp": encoded("BMP"),
    "gif": encoded("GIF", "P"),
    "nothing": b"",
    "text": b"not an image",
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(content: bytes):
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_header_says_what_pillow_says(written, name):
    path = written(PLAIN[name])
    assert plain(path) == header_info(path) == image_info(path)


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_pillow(written, name):
    path = written(UNUSUAL[name])
    assert plain(path) is None
    with opened_files(path.parent) as opened:
        found = said(header_info, path)
    # Pillow itself opens a PNG again, to see what stands behind the pixels.
    # What is not an image at all is looked into once more, to say what it is.
    assert opened["file"] == (2 if content_is_png(path) or name == "text" else 1)
    assert said(image_info, path) == found


def said(read, path):
    try:
        return read(path)
    except DatasetError as error:
        return error.found


def content_is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def plain(path):
    """What is said of a file without Pillow, if anything is."""
    with path.open("rb", buffering=0) as file:
        return plain_header(file.fileno())


def _agrees(path) -> bool:
    """Whether Pillow says the same of a file that needs no Pillow; True of all others."""
    found = plain(path)
    if found is None:
        return True
    try:
        return image_info(path) == found
    except DatasetError:
        return False


def _damaged(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    kind = draw.randrange(4)
    if kind == 0:
        return content[: draw.randrange(len(content))]
    place = draw.randrange(min(len(content), 700))
    if kind == 1:
        changed[place] = draw.randrange(256)
    elif kind == 2:
        changed[place] ^= 1 << draw.randrange(8)
    else:
        changed[place:place] = draw.randbytes(draw.randrange(1, 5))
    return bytes(changed)


def _disagreements(written, rounds: int) -> list[tuple[str, int]]:
    found = []
    for name, content in {**PLAIN, **UNUSUAL}.items():
        if not content or len(content) > 100_000:
            continue
        for number in range(rounds):
            path = written(_damaged(content, random.Random(f"{name} {number}")))
            if not _agrees(path):
                found.append((name, number))
    return found


def test_damaged_headers_never_say_something_else_than_pillow(written):
    assert _disagreements(written, 12) == []
