"""Bad input in folders on disk: names, links, layouts, headers, captions, controls and masks."""

from __future__ import annotations

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
    warning,
    write_image,
    write_pair,
)
from trainer_core.config import DatasetSection
from trainer_core.data.sources.combined import scan_all
from trainer_core.filesystem.allowed_folders import AllowedFolders

Make = Callable[[Path], object]


def _made(make: Make | None = None, **options) -> Callable[[Path], DatasetSection]:
    """A folder with one good sample, and what is bad beside it."""

    def write(folder: Path) -> DatasetSection:
        write_pair(folder / "a.png")
        if make is not None:
            make(folder)
        return DatasetSection(path=str(folder), **options)

    return write


def _paired(make: Make, **options) -> Callable[[Path], DatasetSection]:
    """As `_made`, with a control image for the good sample."""

    def write(folder: Path) -> DatasetSection:
        write_pair(folder / "training_images" / "a.png")
        write_image(folder / "control_images" / "a.png")
        make(folder)
        return DatasetSection(path=str(folder), **options)

    return write


def _alone(make: Make, **options) -> Callable[[Path], DatasetSection]:
    def write(folder: Path) -> DatasetSection:
        make(folder)
        return DatasetSection(path=str(folder), **options)

    return write


def _named(name: str) -> Callable[[Path], DatasetSection]:
    return lambda folder: DatasetSection(path=str(folder / name) if name else "")


def _kept_inside(settings: DatasetSection) -> Outcome:
    found = scan_all(settings, AllowedFolders([Path(settings.path)]))
    return Outcome(found.problems, found.samples)


def _image(name: str, **options) -> Make:
    return lambda folder: write_image(folder / name, **options)


def _pair(name: str, caption: str = "a thing", **options) -> Make:
    return lambda folder: write_pair(folder / name, caption, **options)


def _file(name: str, content: bytes | str = "") -> Make:
    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def _both(*makes: Make) -> Make:
    return lambda folder: [make(folder) for make in makes]


def _link(name: str, target: str) -> Make:
    def write(folder: Path) -> None:
        try:
            (folder / name).symlink_to(target.format(folder=folder))
        except OSError:
            pytest.skip("links need rights here")

    return write


def _outside(name: str, *, folder_itself: bool = False) -> Make:
    """A link to something beside the dataset's folder."""

    def write(folder: Path) -> None:
        beside = folder.parent / "beside"
        write_pair(beside / "b.png")
        target = beside if folder_itself else beside / f"b{Path(name).suffix}"
        _link(name, str(target))(folder)

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


def _many_lonely(folder: Path) -> None:
    for number in range(3000):
        (folder / f"{number:04d}.txt").touch()


_SKIP = {"missing_control": "skip"}

FOLDERS = [
    error("no path", _named(""), "dataset.path is empty"),
    error("no folder", _named("nothing"), "dataset.path ... does not exist"),
    error(
        "file as folder",
        lambda folder: DatasetSection(path=str(write_image(folder / "a.png"))),
        "dataset.path ... is a file",
    ),
    error("empty folder", _named("."), "there are no images"),
    error("folder of other files", _alone(_file("notes.md", "x")), "no sample ... notes.md"),
    error("folders too deep", _made(_deep(220)), "more than 200 deep"),
    error("folder not readable", _made(_unreadable_folder), "locked ... cannot be read"),
    error(
        "three thousand captions alone",
        _made(_many_lonely),
        "0000.txt has no image ... and 2 995 more ... dataset.missing_image",
    ),
    left_out("folder linked twice", _made(_link("again", "{folder}")), "again links"),
    left_out("pipe as image", _made(_pipe), "b.png is no ordinary file"),
    warning("file that is not read", _made(_file("readme.md", "x")), "readme.md"),
    error(
        "image linked from outside",
        _made(_outside("b.png")),
        "b.png ... leads out of the allowed folders",
        run=_kept_inside,
    ),
    error(
        "caption linked from outside",
        _made(_both(_image("b.png"), _outside("b.txt"))),
        "b.txt ... leads out of the allowed folders",
        run=_kept_inside,
    ),
    error(
        "folder linked from outside",
        _made(_outside("b", folder_itself=True)),
        "/b ... leads out of the allowed folders",
        run=_kept_inside,
    ),
]

NAMES = [
    warning("line break in a name", _made(_strange_name(b"b\nc")), "control char"),
    warning("name that is no UTF-8", _made(_strange_name(b"b\xff")), "no UTF-8"),
    warning("names that differ in case", _made(_two_cases), "B.png ... Windows"),
    warning("names that differ in accents", _made(_two_accents), "share one caption"),
    warning("two formats of one name", _made(_image("a.jpg")), "a.jpg and a.png"),
    error(
        "caption in another case",
        _made(_both(_image("b.png"), _file("B.txt", "x"))),
        "b.png has no caption file (B.txt is written otherwise)",
    ),
]

IMAGES = [
    error(
        "image of no bytes",
        _made(_both(_file("b.png"), _file("b.txt", "x"))),
        "b.png is empty (0 bytes) ... dataset.unreadable",
    ),
    left_out(
        "text as image",
        _made(_both(_file("b.png", "text"), _file("b.txt", "x")), unreadable="skip"),
        "b.png cannot be read as an image",
        lost=["b.png"],
    ),
    error("image of ten thousand million pixels", _made(_bomb), "implausible size"),
    left_out(
        "image of another type",
        _made(_pair("b.gif"), unreadable="skip"),
        "b.gif is of a type that is not read",
        lost=["b.gif"],
    ),
    error(
        "link to nothing",
        _made(_both(_link("b.png", "nowhere.png"), _file("b.txt", "x"))),
        "b.png does not exist",
    ),
    error("link to itself", _made(_both(_link("b.png", "b.png"), _file("b.txt", "x"))), "b.png"),
]

CAPTIONS = [
    left_out(
        "caption missing, skipped",
        _made(_image("b.png"), missing_caption="skip"),
        "b.png",
        lost=["b.png"],
    ),
    left_out(
        "caption without image",
        _made(_file("b.txt", "x"), missing_image="skip"),
        "b.txt has no image",
    ),
    error("caption of blanks", _made(_pair("b.png", " \n\t")), "b.png has an empty caption file"),
    error(
        "caption in another encoding",
        _made(_both(_image("b.png"), _file("b.txt", b"caf\xe9"))),
        "b.txt cannot be read as a caption ... UTF-8",
    ),
    error("caption of two megabytes", _made(_pair("b.png", "x" * 2**21)), "b.txt ... larger than"),
    error(
        "folder as caption",
        _made(_both(_image("b.png"), lambda folder: (folder / "b.txt").mkdir())),
        "b.png has no caption file",
    ),
    error(
        "json that is broken",
        _made(_both(_image("b.png"), _file("b.json", "{"))),
        "b.json cannot be read as a caption",
    ),
    error(
        "json of a thousand levels",
        _made(_both(_image("b.png"), _file("b.json", "[" * 1000 + "]" * 1000))),
        "b.json ... nested too deeply",
    ),
    warning("captions of two cases", _made(_file("a.TXT", "y")), "read: a."),
]

CONTROLS = [
    error(
        "image without control",
        _paired(_pair("training_images/b.png")),
        "training_images/b.png has no control image ... dataset.missing_control",
    ),
    left_out(
        "image without control, skipped",
        _paired(_pair("training_images/b.png"), **_SKIP),
        "training_images/b.png",
        lost=["b.png"],
    ),
    left_out(
        "control without image",
        _paired(_image("control_images/b.png"), **_SKIP),
        "control_images/b.png has no training image",
        lost=["b.png"],
    ),
    left_out(
        "control that is broken",
        _paired(
            _both(_pair("training_images/b.png"), _file("control_images/b.png", "x")),
            unreadable="skip",
        ),
        "control_images/b.png ... training_images/b.png",
        lost=["b.png"],
    ),
    warning(
        "caption of a control", _paired(_file("control_images/a.txt", "x")), "control_images/a.txt"
    ),
]

REPEATS = [
    left_out(
        "image beside repeated folders",
        _made(_pair("10_cat/b.png"), layout="kohya"),
        "a.png is not directly in a folder named as 10_name",
        lost=["/a.png"],
    ),
    error("no repeats", _alone(_pair("0_cat/b.png"), layout="kohya"), "0_cat asks for 0 repeats"),
    error(
        "a million repeats",
        _alone(_pair("1000000_cat/b.png"), layout="kohya"),
        "1000000 repeats ... 10000",
    ),
    warning(
        "a year as repeats",
        _alone(_pair("2023_summer/b.png")),
        "2023_summer ... dataset.layout: kohya",
    ),
]


CASES = [
    *FOLDERS,
    *NAMES,
    *IMAGES,
    *CAPTIONS,
    *CONTROLS,
    *REPEATS,
]
