"""What images look like, for duplicates: each decoded once, small and grey, and remembered.

A JPEG is decoded at an eighth of its size where that is enough. What was seen lies in one file of
the cache, 88 bytes an image, and an image that is read again with the same bytes is not decoded.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ...errors import DatasetError, TrainerError
from ...filesystem.storage import atomic_write
from ..image import on_white, to_srgb
from ..image_decoders import BROKEN, MAX_PIXELS, decoded
from .dataset_report import Looked
from .duplicates import ACROSS, DOWN, Looks

FILE = "looks.bin"
"""Name of the file in the cache's folder."""

_DIGEST = 16
_LOOK = ACROSS * DOWN
_RECORD = _DIGEST + _LOOK
_MARK = b"looks 1\n"
_MOST_RECORDS = 4_000_000
_LARGEST = 1 << 30  # bytes of an image file
_SMALL = 64  # pixels of a draft; nine greys across need no more
_BROKEN = (
    *(*BROKEN, DatasetError, MemoryError),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)


@dataclass(frozen=True, slots=True)
class ImageLooks:
    """What the images look like.

    Attributes:
        looks: `[N, 72]`; zeros where ``broken`` tells why.
        contents: A digest of each file's bytes; empty where it could not be read.
    """

    looks: Looks
    contents: tuple[bytes, ...]
    broken: dict[int, str]
    took: Looked


def look_at_images(
    paths: Sequence[Path],
    remembered: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImageLooks:
    """Look at images, in threads.

    Args:
        remembered: Folder of the file that remembers; None, or a folder that is not there,
            remembers nothing.
        progress: Told how many of how many are done.
    """
    start = time.perf_counter()
    store = remembered / FILE if remembered is not None and remembered.is_dir() else None
    known = _read_store(store)
    looks = np.zeros((len(paths), _LOOK), dtype=np.uint8)
    contents, broken = [b""] * len(paths), {}
    fresh: dict[bytes, bytes] = {}

    def one(place: int) -> None:
        try:
            data = file_bytes(paths[place])
            digest = hashlib.blake2b(data, digest_size=_DIGEST).digest()
            contents[place] = digest
            look = known.get(digest) or fresh.get(digest)
            if look is None:
                look = image_look(small_image(data, _SMALL, "L"))
                fresh[digest] = look
            looks[place] = np.frombuffer(look, dtype=np.uint8)
        except _BROKEN as error:
            broken[place] = str(error) or type(error).__name__

    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        try:
            for done, _ in enumerate(pool.map(one, range(len(paths))), start=1):
                progress(done, len(paths))
        except BaseException:
            # Whoever watches may end it: what waits is then not begun.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if store is not None and fresh:
        _write_store(store, known | fresh)
    took = Looked(len(paths), len(fresh), time.perf_counter() - start)
    return ImageLooks(looks, tuple(contents), broken, took)


def file_bytes(path: Path) -> bytes:
    """All bytes of an image file.

    Raises:
        ValueError: When there are more than a gigabyte.
        OSError: When it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError("the file has more than a gigabyte")
    return data


def image_look(image: Image.Image) -> bytes:
    """Nine times eight greys of an image in memory, row by row."""
    small = image.convert("L")
    small.thumbnail((_SMALL, _SMALL), Image.Resampling.BOX)
    return small.resize((ACROSS, DOWN), Image.Resampling.BOX).tobytes()


def small_image(data: bytes, side: int, mode: str = "RGB") -> Image.Image:
    """Decode an image to about a size, upright, transparency on white.

    Args:
        data: The file's bytes.
        side: The longer side of what is wanted, in pixels; a smaller image stays as it is.
        mode: ``RGB`` or ``L``.

    Raises:
        Exception: Whatever Pillow's decoders raise.
    """
    with decoded(io.BytesIO(data), "the image") as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError("the image is implausibly large")
        profile = image.info.get("icc_profile")
        image.draft(mode, (side, side))
        if image.mode.startswith("I"):
            values = np.asarray(image).astype(np.int64).clip(0, 65535)
            plain = Image.fromarray((values >> 8).astype(np.uint8))
        elif "transparency" in image.info or image.mode in {"LA", "La", "PA", "RGBA", "RGBa"}:
            plain = on_white(image.convert("RGBA"))
        else:
            plain = image.convert("L") if mode == "L" else to_srgb(image, profile)
        plain.thumbnail((side, side), Image.Resampling.BOX)
        with contextlib.suppress(*_BROKEN):
            # The rotation is the file's, and Pillow's own function reads it of what it turns.
            plain.info["exif"] = image.getexif().tobytes()
            plain = ImageOps.exif_transpose(plain)
        plain = plain.convert(mode)
        plain.info = {}
        return plain


def _read_store(path: Path | None) -> dict[bytes, bytes]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            data = file.read(len(_MARK) + _MOST_RECORDS * _RECORD + 1)
    except OSError:
        return {}
    body = data[len(_MARK) :]
    # A damaged file is one that was never written: everything is looked at again.
    if not data.startswith(_MARK) or len(body) % _RECORD or len(body) > _MOST_RECORDS * _RECORD:
        return {}
    starts = range(0, len(body), _RECORD)
    return {body[at : at + _DIGEST]: body[at + _DIGEST : at + _RECORD] for at in starts}


def _write_store(path: Path, known: dict[bytes, bytes]) -> None:
    records = b"".join(digest + look for digest, look in list(known.items())[-_MOST_RECORDS:])
    # Without it the images are decoded again, which is no reason to give no report.
    with contextlib.suppress(TrainerError):
        atomic_write(path, lambda draft: draft.write_bytes(_MARK + records))
