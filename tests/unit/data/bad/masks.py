"""Bad input in masks: files, transparency, weights, crops."""

import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.fixtures.bad_input import (
    Outcome,
    error,
    left_out,
    link,
    warning,
    write_image,
    write_pair,
)
from tests.fixtures.cache_world import TinyEncoders
from trainer_core.config import DatasetSection
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.cache.build_cache import build_cache
from trainer_core.data.cache.entry_keys import EntryKeys
from trainer_core.data.file_memory import FileMemory
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.filesystem.allowed_folders import AllowedFolders

SIZE = 64


def _settings(folder: Path, **options: Any) -> DatasetSection:
    return DatasetSection(path=str(folder), resolution=SIZE, **options)


def _encoded(settings: DatasetSection) -> Outcome:
    """Scan, plan and encode; what is left out while encoding is left out."""
    found = scan_all(settings)
    plan = plan_buckets(found.samples, settings, 16, lambda width, height, area: (32, 32))
    cache = Path(settings.path).parent / "cache"
    keys = EntryKeys(
        *(cache, "tiny", settings, FileMemory(cache)),
        grid=lambda width, height: (height // 8, width // 8, 2),
    )
    dataset = build_cache(keys, plan, TinyEncoders().open)
    kept = tuple(sample for sample in found.samples if sample.name in dataset.names)
    return Outcome((*found.problems, *plan.notes, *dataset.problems), kept)


def _two(folder: Path, **size: int) -> Path:
    """Two images; the first is to get a bad mask, whose path is returned."""
    write_pair(folder / "a.png", **{"width": SIZE, "height": SIZE, **size})
    write_pair(folder / "b.png", width=SIZE, height=SIZE)
    _mask(folder / "b_mask.png")
    return folder / "a_mask.png"


def _mask(path: Path, width: int = SIZE, height: int = SIZE, white: float = 0.5) -> Path:
    values = np.zeros((height, width), np.uint8)
    values[:, : int(width * white)] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


def _bytes(folder: Path, data: bytes, **options: Any) -> DatasetSection:
    _two(folder).write_bytes(data)
    return _settings(folder, **options)


def _other_shape(folder: Path) -> DatasetSection:
    _mask(_two(folder, width=96))
    return _settings(folder)


def _cut_short(folder: Path, **options: Any) -> DatasetSection:
    mask = _two(folder)
    write_image(mask, width=SIZE, height=SIZE)
    mask.write_bytes(mask.read_bytes()[:-40])
    return _settings(folder, **options)


def _animated(folder: Path) -> DatasetSection:
    frames = [Image.new("L", (SIZE, SIZE), level) for level in (0, 255)]
    frames[0].save(_two(folder).with_suffix(".webp"), save_all=True, append_images=frames[1:])
    return _settings(folder)


def _implausible(folder: Path) -> DatasetSection:
    head = struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    pixels = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    return _bytes(folder, b"\x89PNG\r\n\x1a\n" + chunk + pixels)


def _lonely(folder: Path, **options: Any) -> DatasetSection:
    _two(folder)
    _mask(folder / "c_mask.png")
    return _settings(folder, **options)


def _twice(folder: Path) -> DatasetSection:
    _mask(_two(folder))
    _mask(folder / "a_mask.jpg")
    return _settings(folder)


def _one_color(folder: Path, white: float, **mask: Any) -> DatasetSection:
    options = {"unreadable": mask.pop("unreadable", "error")}
    _mask(_two(folder), white=white)
    return _settings(folder, mask=mask, **options)


def _cropped_away(folder: Path) -> DatasetSection:
    _mask(_two(folder, width=100), width=100, white=0.05)
    return _settings(folder, mask={"background": 0.0}, max_aspect_ratio=1.0)


def _captioned(folder: Path) -> DatasetSection:
    mask = _mask(_two(folder))
    mask.with_suffix(".txt").write_text("a mask", encoding="utf-8")
    return _settings(folder)


def _another_type(folder: Path) -> DatasetSection:
    mask = _two(folder).with_suffix(".tiff")
    Image.new("L", (SIZE, SIZE)).save(mask)
    return _settings(folder)


def _is_a_folder(folder: Path) -> DatasetSection:
    _two(folder).mkdir()
    return _settings(folder)


def _linked(folder: Path) -> DatasetSection:
    mask = _two(folder)
    outside = _mask(folder.parent / "outside" / "secret.png")
    link(mask, outside)
    return _settings(folder)


def _guarded(settings: DatasetSection) -> Outcome:
    folder = Path(settings.path)
    found = scan_all(settings, AllowedFolders((folder,), "the folder"))
    return Outcome(found.problems, found.samples)


def _broken_link(folder: Path) -> DatasetSection:
    mask = _two(folder)
    link(mask, folder / "nowhere.png")
    return _settings(folder)


_SHAPE = "the mask a_mask.png has 64 x 64 pixels, and its image 96 x 64 ... dataset.mask.source"
_NOTHING = "nothing of a.png counts"

CASES = [
    error("mask of another shape", _other_shape, _SHAPE),
    error("mask is text", partial(_bytes, data=b"white"), "a_mask.png"),
    left_out(
        "mask is text, skipped",
        partial(_bytes, data=b"white", unreadable="skip"),
        "a_mask.png ... left out: a.png",
        lost=["/a.png"],
        complete=False,
    ),
    error("mask cut short", _cut_short, "a_mask.png", run=_encoded),
    left_out(
        "mask cut short, skipped",
        partial(_cut_short, unreadable="skip"),
        "a.png ... a_mask.png",
        run=_encoded,
        lost=["/a.png"],
        complete=False,
    ),
    error("mask of several frames", _animated, "a_mask.webp ... frames"),
    error("mask claims an implausible size", _implausible, "a_mask.png ... 60000"),
    left_out("mask without image, skipped", partial(_lonely, missing_image="skip"), "c_mask.png"),
    left_out("two masks of an image", _twice, "a_mask.png ... a_mask.jpg"),
    error(
        "white mask where white weighs 0",
        partial(_one_color, white=1, foreground=0.0),
        _NOTHING,
        run=_encoded,
    ),
    error(
        "all that counts is cut off",
        _cropped_away,
        f"{_NOTHING} ... dataset.mask.background ... dataset.crop: mask",
        run=_encoded,
    ),
    warning("mask with a caption", _captioned, "a_mask.txt"),
    error("mask of a type that is not read", _another_type, "a_mask.tiff"),
    warning("mask is a folder", _is_a_folder, "a.png ... no mask"),
    error("mask leads out of the folder", _linked, "a_mask.png", run=_guarded),
    error("mask leads nowhere", _broken_link, "a_mask.png"),
]
