"""Bad input in folders on disk: names, links, layouts, headers, captions, controls and masks."""

from __future__ import annotations

import os
import shutil
import struct
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.bad_input import BadInput, Outcome, write_image, write_pair
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


def _cut(name: str) -> Make:
    def write(folder: Path) -> None:
        path = write_pair(folder / name)
        path.write_bytes(path.read_bytes()[:30])

    return write


def _many_lonely(folder: Path) -> None:
    for number in range(3000):
        (folder / f"{number:04d}.txt").touch()


def _copied(name: str, other: str) -> Make:
    return lambda folder: shutil.copy(folder / name, folder / other)


def _layers_and_controls(folder: Path) -> None:
    write_image(folder / "layers" / "a_0.png", mode="RGBA")


_SKIP = {"missing_control": "skip"}

FOLDERS = [
    BadInput("no path", _named(""), "error", ["dataset.path is empty"]),
    BadInput("no folder", _named("nothing"), "error", ["dataset.path", "does not exist"]),
    BadInput(
        "file as folder",
        lambda folder: DatasetSection(path=str(write_image(folder / "a.png"))),
        "error",
        ["dataset.path", "is a file"],
    ),
    BadInput("empty folder", _named("."), "error", ["there are no images"]),
    BadInput(
        "folder of other files", _alone(_file("notes.md", "x")), "error", ["no sample", "notes.md"]
    ),
    BadInput("folders too deep", _made(_deep(220)), "error", ["more than 200 deep"]),
    BadInput(
        "folder not readable", _made(_unreadable_folder), "error", ["locked", "cannot be read"]
    ),
    BadInput(
        "three thousand captions alone",
        _made(_many_lonely),
        "error",
        ["0000.txt has no image", "and 2 995 more", "dataset.missing_image"],
    ),
    BadInput("folder linked twice", _made(_link("again", "{folder}")), "left_out", ["again links"]),
    BadInput("pipe as image", _made(_pipe), "left_out", ["b.png is no ordinary file"]),
    BadInput("file that is not read", _made(_file("readme.md", "x")), "warning", ["readme.md"]),
    BadInput(
        "image linked from outside",
        _made(_outside("b.png")),
        "error",
        ["b.png", "leads out of the allowed folders"],
        run=_kept_inside,
    ),
    BadInput(
        "caption linked from outside",
        _made(_both(_image("b.png"), _outside("b.txt"))),
        "error",
        ["b.txt", "leads out of the allowed folders"],
        run=_kept_inside,
    ),
    BadInput(
        "folder linked from outside",
        _made(_outside("b", folder_itself=True)),
        "error",
        ["/b", "leads out of the allowed folders"],
        run=_kept_inside,
    ),
]

NAMES = [
    BadInput("line break in a name", _made(_strange_name(b"b\nc")), "warning", ["control char"]),
    BadInput("name that is no UTF-8", _made(_strange_name(b"b\xff")), "warning", ["no UTF-8"]),
    BadInput("names that differ in case", _made(_two_cases), "warning", ["B.png", "Windows"]),
    BadInput("names that differ in accents", _made(_two_accents), "warning", ["share one caption"]),
    BadInput("two formats of one name", _made(_image("a.jpg")), "warning", ["a.jpg and a.png"]),
    BadInput(
        "caption in another case",
        _made(_both(_image("b.png"), _file("B.txt", "x"))),
        "error",
        ["b.png has no caption file (B.txt is written otherwise)"],
    ),
]

IMAGES = [
    BadInput("image of no bytes", _made(_both(_file("b.png"), _file("b.txt", "x"))), "error",
             ["b.png is empty (0 bytes)", "dataset.unreadable"]),
    BadInput("text as image", _made(_both(_file("b.png", "text"), _file("b.txt", "x")),
                                    unreadable="skip"),
             "left_out", ["b.png cannot be read as an image"], lost=["b.png"]),
    BadInput("image cut in its header", _made(_cut("b.png")), "error", ["b.png cannot be read"]),
    BadInput("jpeg cut in its header", _made(_cut("b.jpg")), "error", ["b.jpg cannot be read"]),
    BadInput("webp cut in its header", _made(_cut("b.webp")), "error", ["b.webp cannot be read"]),
    BadInput("image of ten thousand million pixels", _made(_bomb), "error", ["implausible size"]),
    BadInput("image of another type", _made(_pair("b.gif"), unreadable="skip"), "left_out",
             ["b.gif is of a type that is not read"], lost=["b.gif"]),
    BadInput("link to nothing", _made(_both(_link("b.png", "nowhere.png"), _file("b.txt", "x"))),
             "error", ["b.png does not exist"]),
    BadInput("link to itself", _made(_both(_link("b.png", "b.png"), _file("b.txt", "x"))),
             "error", ["b.png"]),
]  # fmt: skip

CAPTIONS = [
    BadInput("caption missing", _made(_image("b.png")), "error",
             ["b.png has no caption file", "dataset.missing_caption"]),
    BadInput("caption missing, skipped", _made(_image("b.png"), missing_caption="skip"),
             "left_out", ["b.png"], lost=["b.png"]),
    BadInput("caption without image", _made(_file("b.txt", "x"), missing_image="skip"),
             "left_out", ["b.txt has no image"]),
    BadInput("caption of blanks", _made(_pair("b.png", " \n\t")), "error",
             ["b.png has an empty caption file"]),
    BadInput("caption in another encoding", _made(_both(_image("b.png"),
                                                       _file("b.txt", b"caf\xe9"))),
             "error", ["b.txt cannot be read as a caption", "UTF-8"]),
    BadInput("caption of two megabytes", _made(_pair("b.png", "x" * 2**21)), "error",
             ["b.txt", "larger than"]),
    BadInput("folder as caption", _made(_both(_image("b.png"),
                                              lambda folder: (folder / "b.txt").mkdir())),
             "error", ["b.png has no caption file"]),
    BadInput("json that is broken", _made(_both(_image("b.png"), _file("b.json", "{"))), "error",
             ["b.json cannot be read as a caption"]),
    BadInput("json that is no text", _made(_both(_image("b.png"),
                                                 _file("b.json", '{"caption": 5}'))),
             "error", ["b.json", "which is no text"]),
    BadInput("json of a thousand levels", _made(_both(_image("b.png"),
                                                      _file("b.json", "[" * 1000 + "]" * 1000))),
             "error", ["b.json", "nested too deeply"]),
    BadInput("json of something else", _made(_both(_image("b.png"), _file("b.json", '{"x": "y"}'))),
             "error", ["b.png has an empty caption file"]),
    BadInput("several captions of one image", _made(_file("a.json", '"x"')), "warning",
             ["a.json (read: a.txt)"]),
    BadInput("captions of two cases", _made(_file("a.TXT", "y")), "warning", ["read: a."]),
    BadInput("caption of another extension", _made(_both(_image("b.png"),
                                                         _file("b.caption", "x"))),
             "warning", ["b.caption read"]),
]  # fmt: skip

CONTROLS = [
    BadInput("paired without controls", _alone(_pair("training_images/a.png")), "error",
             ["no folder control_images"]),
    BadInput("controls and layers", _paired(_layers_and_controls), "error",
             ["control_images and layers"]),
    BadInput("image without control", _paired(_pair("training_images/b.png")), "error",
             ["training_images/b.png has no control image", "dataset.missing_control"]),
    BadInput("image without control, skipped", _paired(_pair("training_images/b.png"), **_SKIP),
             "left_out", ["training_images/b.png"], lost=["b.png"]),
    BadInput("image without control, kept", _paired(_pair("training_images/b.png"),
                                                    missing_control="without"),
             "warning", ["training_images/b.png", "without control image"]),
    BadInput("control without image", _paired(_image("control_images/b.png"), **_SKIP), "left_out",
             ["control_images/b.png has no training image"], lost=["b.png"]),
    BadInput("gap among controls", _paired(_image("control_images/a_3.png")), "error",
             ["a.png: control images begin at number 3"]),
    BadInput("two controls of one place", _paired(_image("control_images/a.jpg")), "error",
             ["claim the same place", "control_images/a.jpg"]),
    BadInput("control that is broken", _paired(_both(_pair("training_images/b.png"),
                                                     _file("control_images/b.png", "x")),
                                               unreadable="skip"),
             "left_out", ["control_images/b.png", "training_images/b.png"], lost=["b.png"]),
    BadInput("caption of a control", _paired(_file("control_images/a.txt", "x")), "warning",
             ["control_images/a.txt"]),
    BadInput("control of another type", _paired(_image("control_images/a.gif"),
                                                unreadable="skip"),
             "left_out", ["control_images/a.gif is of a type"]),
]  # fmt: skip

REPEATS = [
    BadInput("image beside repeated folders", _made(_pair("10_cat/b.png"), layout="kohya"),
             "left_out", ["a.png is not directly in a folder named as 10_name"], lost=["/a.png"]),
    BadInput("no repeats", _alone(_pair("0_cat/b.png"), layout="kohya"), "error",
             ["0_cat asks for 0 repeats"]),
    BadInput("a million repeats", _alone(_pair("1000000_cat/b.png"), layout="kohya"), "error",
             ["1000000 repeats", "10000"]),
    BadInput("a year as repeats", _alone(_pair("2023_summer/b.png")), "warning",
             ["2023_summer", "dataset.layout: kohya"]),
    BadInput("a repeated folder without captions", _alone(_image("10_cat/b.png")), "warning",
             ["10_cat ('cat')"]),
    BadInput("a repeated folder with one caption",
             _alone(_both(_pair("10_cat/a.png"), _image("10_cat/b.png"))), "error",
             ["10_cat/b.png has no caption file"]),
]  # fmt: skip

# Masks themselves are in the table of masks.
MASKS = [
    BadInput("two masks of one image", _made(_both(_image("a_mask.png"), _image("masks/a.png"))),
             "left_out", ["masks/a.png", "a_mask.png is a mask of the same image"]),
    BadInput("caption file of a mask", _made(_pair("a_mask.png")), "warning",
             ["1 caption(s) of masks are not read: a_mask.txt"]),
    BadInput("mask folder with a stray", _made(_image("masks/b.png"), missing_image="skip"),
             "left_out", ["masks/b.png is a mask without image"], lost=["masks/b.png"]),
]  # fmt: skip

CASES = [*FOLDERS, *NAMES, *IMAGES, *CAPTIONS, *CONTROLS, *REPEATS, *MASKS]
