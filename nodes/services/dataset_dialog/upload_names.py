"""Which name a file of a drop gets in a dataset folder that is there already."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 2**20
_MASK = "_mask"
_REPEATED = re.compile(r"\d{1,9}_.+")


def is_metadata(path: Path) -> bool:
    """Whether it is a file that lists the images of its folder."""
    from ....trainer_core.data.sources.metadata_file import EXTENSIONS, USUAL_NAME

    return path.stem == USUAL_NAME and path.suffix in EXTENSIONS


def is_caption(path: Path) -> bool:
    """Whether it is a caption file by its name."""
    from ....trainer_core.data.sources.list_files import CAPTION_EXTENSIONS

    return path.suffix.lower() in CAPTION_EXTENSIONS


def is_beside(name: str) -> bool:
    """Whether a folder of this name lies at the top of a dataset and says what is in it."""
    from ....trainer_core.data.sources.recognize_layout import CONTROL_FOLDER, FOLDERS, MASK_FOLDER

    numbered = name.removeprefix(f"{CONTROL_FOLDER}_")
    return name in (*FOLDERS, MASK_FOLDER) or (numbered != name and numbered.isdecimal())


def is_telling(name: str) -> bool:
    """Whether a folder's name says something of its images: what they are, or how often."""
    return is_beside(name) or _REPEATED.fullmatch(name) is not None


def new_names(
    staging: Path, staged: list[Path], folder: Path, skipped: list[tuple[str, str]]
) -> Iterator[tuple[Path, Path]]:
    """Each file with its new path; an image, its caption, controls and layers stay together."""
    from ....trainer_core.data.sources.control_files import control_in_folder
    from ....trainer_core.data.sources.recognize_layout import FOLDERS, TRAINING_FOLDER

    there = [name for name in FOLDERS if (folder / name).is_dir()]
    paired = TRAINING_FOLDER in there and len(there) > 1
    groups: dict[str, list[tuple[Path, Path, str]]] = {}
    placed: list[tuple[Path, Path, str]] = []
    for source in staged:
        path = source.relative_to(staging)
        if is_metadata(path):
            # Under another name it would not be read.
            if (folder / path).exists():
                skipped.append((path.as_posix(), "the dataset has a metadata file already"))
            else:
                yield source, path
            continue
        kind = path.parts[0] if is_beside(path.parts[0]) and len(path.parts) > 1 else ""
        inner = path.relative_to(kind) if kind else path
        place = Path(kind or (TRAINING_FOLDER if paired else ""))
        placed.append((source, place / inner, inner.with_suffix("").as_posix()))
    own = {
        stem
        for _, path, stem in placed
        if path.parts[0] == TRAINING_FOLDER or not is_beside(path.parts[0])
    }
    for source, path, stem in placed:
        control = control_in_folder(stem, own - {stem})
        target = stem if control is None else control.target
        if stem.removesuffix(_MASK) in own - {stem}:
            target = stem.removesuffix(_MASK)
        groups.setdefault(target, []).append((source, path, stem))
    taken = _Taken(folder)
    for target, group in groups.items():
        names = list(_renamed(target, group, taken, skipped))
        for _, path in names:
            taken.add(path)
        yield from names


class _Taken:
    """The files of a folder by their place and stem, whatever the case of their names."""

    def __init__(self, folder: Path) -> None:
        self._files: defaultdict[str, list[Path]] = defaultdict(list)
        self._folder = folder
        for path in folder.rglob("*"):
            self.add(path.relative_to(folder))

    def add(self, path: Path) -> None:
        """Note a file by its path below the folder."""
        self._files[_folded(path)].append(self._folder / path)

    def by(self, path: Path) -> list[Path]:
        """Those that a path below the folder shares place and stem with."""
        return self._files.get(_folded(path), [])


def _renamed(
    target: str, group: list[tuple[Path, Path, str]], taken: _Taken, skipped: list[tuple[str, str]]
) -> Iterator[tuple[Path, Path]]:
    known = [
        item
        for item in group
        if any(
            each.suffix == item[1].suffix and _holds(each, item[0]) for each in taken.by(item[1])
        )
    ]
    left = [item for item in group if item not in known]
    if all(is_caption(path) for _, path, _ in left):
        skipped.extend((path.as_posix(), "it is there already") for _, path, _ in known)
        # Captions alone belong to images that are there.
        for source, path, _ in left:
            if any(is_caption(other) for other in taken.by(path)):
                skipped.append((path.as_posix(), "its image has another caption already"))
            else:
                yield source, path
        return
    number = 1
    while any(taken.by(_with_stem(path, stem, target, number)) for _, path, stem in group):
        number += 1
    yield from ((source, _with_stem(path, stem, target, number)) for source, path, stem in group)


def _with_stem(path: Path, stem: str, target: str, number: int) -> Path:
    """The path, with a number above 1 behind the part of its stem that names the image."""
    if number == 1:
        return path
    inside = path.with_suffix("").as_posix()
    before = inside[: len(inside) - len(stem)]
    return Path(f"{before}{target} ({number}){stem[len(target) :]}{path.suffix}")


def _folded(path: Path) -> str:
    return unicodedata.normalize("NFC", path.with_suffix("").as_posix()).casefold()


def _holds(path: Path, other: Path) -> bool:
    if not path.is_file() or path.stat().st_size != other.stat().st_size:
        return False
    with path.open("rb") as one, other.open("rb") as two:
        while block := one.read(_BLOCK):
            if block != two.read(_BLOCK):
                return False
    return True
