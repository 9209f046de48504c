"""Bad input in folders on disk: names, links, layouts, headers, captions, controls and masks."""

import os
import struct
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.bad_input import (
    Outcome,
    error,
    left_out,
    link,
    warning,
    write_image,
    write_pair,
)
from trainer_core.config import DatasetSection
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.filesystem.allowed_folders import AllowedFolders

Make = Callable[[Path], object]


def _made(make: Make) -> Callable[[Path], DatasetSection]:
    """A folder with one good sample, and what is bad beside it."""

    def write(folder: Path) -> DatasetSection:
        write_pair(folder / "a.png")
        make(folder)
        return DatasetSection(path=str(folder))

    return write


def _kept_inside(settings: DatasetSection) -> Outcome:
    found = scan_all(settings, AllowedFolders([Path(settings.path)]))
    return Outcome(found.problems, found.samples)


def _outside(name: str) -> Make:
    """A link to something beside the dataset's folder."""

    def write(folder: Path) -> None:
        beside = folder.parent / "beside"
        write_pair(beside / "b.png")
        link(folder / name, beside / name if "." in name else beside)

    return write


def _strange_name(name: bytes) -> Make:
    def write(folder: Path) -> None:
        stem = os.fsdecode(name)
        try:
            write_pair(folder / f"{stem}.png")
        except (OSError, ValueError):
            pytest.skip("the file system takes no such name")

    return write


def _two_cases(folder: Path) -> None:
    write_pair(folder / "b.png")
    if (folder / "B.png").exists():
        pytest.skip("upper and lower case are the same here")
    write_pair(folder / "B.png", width=40)


def _two_accents(folder: Path) -> None:
    composed, apart = (unicodedata.normalize(form, "\u00fc") for form in ("NFC", "NFD"))
    write_pair(folder / f"{composed}.png")
    if (folder / f"{apart}.png").exists():
        pytest.skip("both are the same name here")
    write_image(folder / f"{apart}.png", width=40)


def _pipe(folder: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes here")
    os.mkfifo(folder / "b.png")


def _deep(count: int) -> Make:
    return lambda folder: write_pair(folder.joinpath(*["d"] * count) / "deep.png")


def _unreadable_folder(folder: Path) -> None:
    write_pair(folder / "locked" / "b.png")
    (folder / "locked").chmod(0)
    if os.access(folder / "locked", os.R_OK):
        (folder / "locked").chmod(0o700)
        pytest.skip("this user reads every folder")


def _bomb(folder: Path) -> None:
    write_pair(folder / "b.png")
    size = struct.pack(">II", 100_000, 100_000) + b"\x08\x02\0\0\0"
    content = bytearray((folder / "b.png").read_bytes())
    content[16:29] = size
    content[29:33] = struct.pack(">I", zlib.crc32(b"IHDR" + size))
    (folder / "b.png").write_bytes(bytes(content))


def _many_alone(folder: Path) -> None:
    for number in range(3000):
        (folder / f"{number:04d}.txt").touch()


def _caption(content: bytes) -> Callable[[Path], DatasetSection]:
    def make(folder: Path) -> None:
        write_image(folder / "b.png")
        (folder / ("b.json" if content.startswith(b"[") else "b.txt")).write_bytes(content)

    return _made(make)


def _linked_caption(folder: Path) -> None:
    write_image(folder / "b.png")
    _outside("b.txt")(folder)


def _folder_as_caption(folder: Path) -> None:
    write_image(folder / "b.png")
    (folder / "b.txt").mkdir()


_LEADS_OUT = "leads out of the allowed folders"

CASES = [
    error("no path", lambda folder: DatasetSection(path=""), "dataset.path is empty"),
    error(
        "no folder",
        lambda folder: DatasetSection(path=str(folder / "nothing")),
        "dataset.path ... does not exist",
    ),
    error(
        "file as folder",
        lambda folder: DatasetSection(path=str(write_image(folder / "a.png"))),
        "dataset.path ... is a file",
    ),
    error("empty folder", lambda folder: DatasetSection(path=str(folder)), "there are no images"),
    error("folders too deep", _made(_deep(220)), "more than 200 deep"),
    error("folder not readable", _made(_unreadable_folder), "locked ... cannot be read"),
    error(
        "three thousand captions alone",
        _made(_many_alone),
        "0000.txt has no image ... and 2 995 more ... dataset.missing_image",
    ),
    left_out(
        "folder linked twice", _made(lambda folder: link(folder / "again", folder)), "again links"
    ),
    left_out("pipe as image", _made(_pipe), "b.png is not an ordinary file"),
    error(
        "image linked from outside",
        _made(_outside("b.png")),
        f"b.png ... {_LEADS_OUT}",
        run=_kept_inside,
    ),
    error(
        "caption linked from outside",
        _made(_linked_caption),
        f"b.txt ... {_LEADS_OUT}",
        run=_kept_inside,
    ),
    error(
        "folder linked from outside", _made(_outside("b")), f"/b ... {_LEADS_OUT}", run=_kept_inside
    ),
    warning("line break in a name", _made(_strange_name(b"b\nc")), "control char"),
    warning("name that is not UTF-8", _made(_strange_name(b"b\xff")), "not UTF-8"),
    warning("names that differ in case", _made(_two_cases), "B.png ... Windows"),
    warning("names that differ in accents", _made(_two_accents), "share one caption"),
    error("image of ten thousand million pixels", _made(_bomb), "implausible size"),
    error("caption in another encoding", _caption(b"caf\xe9"), "b.txt cannot be read ... UTF-8"),
    error("caption of two megabytes", _caption(b"x" * 2**21), "b.txt ... larger than"),
    error("json of a thousand levels", _caption(b"[" * 1000 + b"]" * 1000), "nested too deeply"),
    error("folder as caption", _made(_folder_as_caption), "b.png has no caption file"),
]
