"""Names that come from a graph, kept inside the folders that ComfyUI allows.

A workflow may come from a stranger: no name in it may lead anywhere else, by ``..``, an absolute
path, a drive letter, a network path, a device name or an odd character. Links that lead out are
refused for datasets, runs and new files; what lies inside of those is checked where it is read
(`allowed_folders`). In the folders of models they are followed, as ComfyUI does it: a workflow
cannot make one, and the caches that models are downloaded to consist of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from ...trainer_core.errors import InputError
from ...trainer_core.filesystem.file_names import name_mistake
from ...trainer_core.printable import shortened
from ...trainer_core.training.checkpoints.run_names import CHECKPOINTS, RECORD

if TYPE_CHECKING:
    from ...trainer_core.data.file_memory import FileMemory

_logger = logging.getLogger(__name__)
_LONGEST, _SHOWN = 240, 80
_BASE_SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
_BASE_DEPTH = 3
_BASE_FILES = 2000


def checked_parts(name: str, what: str, *, new: bool = True) -> tuple[str, ...]:
    """Split a name such as ``datasets/cats`` into parts that are safe on every system.

    With `new` something of this name will be made. Names that exist may have loose accents, as
    macOS writes them.

    Raises:
        InputError: When a part could lead out of a folder or is not a file name somewhere.
    """
    parts = tuple(name.split("/"))
    for part in parts:
        reason = name_mistake(part, new=new)
        if reason:
            raise InputError(
                f"{what}: {shortened(name, _SHOWN)!r} ({reason})",
                "a plain name, or plain names separated by /",
                "Choose a name from the list, or another name: letters of any script, digits, "
                "spaces, '-', '_' and '.'.",
            )
    windows = PureWindowsPath(name)
    if PurePosixPath(name).is_absolute() or windows.drive or windows.root or len(name) > _LONGEST:
        raise InputError(
            f"{what}: {name[:80]!r} is a path of its own, or too long",
            "a name below one of ComfyUI's folders",
            "Choose a name from the list.",
        )
    return parts


ADD_ROOT = (
    "Choose from the list after a refresh (key R), move it there, or add its folder to "
    "extra_model_paths.yaml (for datasets under the key 'datasets') and restart ComfyUI."
)


def resolve_below(
    name: str,
    roots: Mapping[str, Sequence[Path]],
    what: str,
    *,
    links: bool = False,
    remedy: str = ADD_ROOT,
) -> Path:
    """Find the file or folder that a graph names.

    Args:
        name: ``<root>/<path below it>``.
        roots: Allowed folders by the name that a graph uses for them.
        links: Whether links that lead out of the root are followed.
        remedy: What the error says to do.

    Returns:
        The existing path.

    Raises:
        InputError: When it does not exist, or a link leads out of the root and is not followed.
    """
    from ...trainer_core.filesystem.allowed_folders import AllowedFolders

    first, *rest = checked_parts(name, what, new=False)
    for root in roots.get(first, ()):
        path = root.joinpath(*rest)
        if not path.exists():
            continue
        if not links and not AllowedFolders([root]).holds(path):
            raise InputError(
                f"{what}: {name} is a link that leads out of {first}",
                "a file or folder that lies there itself",
                remedy,
            )
        return path
    raise InputError(
        f"{what}: there is no {name}",
        "something below " + ", ".join(sorted(roots)),
        remedy,
    )


def folders_below(
    roots: Mapping[str, Sequence[Path]], depth: int = 2, skipped: Path | None = None
) -> list[str]:
    """Folders that a graph may name, as `resolve_below` takes them, sorted within each root.

    What is skipped is left out with everything below it; `depth` says how deep to look.
    """
    found: list[str] = []
    for name, places in roots.items():
        names: set[str] = set()
        for root in places:
            names.update(_names_below(root, depth, skipped))
        found += [f"{name}/{each}" for each in sorted(names)]
    return found


def _names_below(root: Path, depth: int, skipped: Path | None) -> list[str]:
    if depth == 0 or not root.is_dir():
        return []
    names: list[str] = []
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    for entry in entries:
        if entry.name.startswith((".", "_")) or name_mistake(entry.name, new=False):
            continue
        if entry == skipped or entry.is_symlink() or not entry.is_dir():
            continue
        names.append(entry.name)
        names += [f"{entry.name}/{each}" for each in _names_below(entry, depth - 1, skipped)]
    return names


def saved_checkpoints(version: Path) -> list[Path]:
    """The whole checkpoints of a run's version, oldest first.

    The trainer lists them alike, but its module brings torch, which a start must not load.
    """
    found = [path for path in version.glob(f"{CHECKPOINTS}/[0-9]*") if path.name.isdecimal()]
    whole = [path for path in found if (path / "state.json").is_file()]
    return sorted(whole, key=lambda path: int(path.name))


def file_stamp(path: str) -> str:
    """Changes with a file, or with the files of a base's folder: their names, sizes and times."""
    place = Path(path)
    if place.is_dir():
        return base_stamp(place)
    facts = place.stat()
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"


def run_stamp(folder: Path) -> str:
    """Changes with a run's record and its adapters."""
    adapters = ("*.safetensors", f"{CHECKPOINTS}/*/adapter.safetensors")
    return folder_stamp(folder, (RECORD, *adapters))


@cache
def headers() -> FileMemory:
    """What headers say, as long as ComfyUI runs: a strip asks again after each click."""
    from ...trainer_core.data.file_memory import FileMemory

    return FileMemory(None)


def folder_stamp(folder: Path, patterns: tuple[str, ...] = ("**/*",)) -> str:
    """Changes with the files below a folder: with all, or with those that match."""
    try:
        found = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    except RecursionError:
        return "folders inside folders, which the node itself refuses"
    return _stamp(folder, found)


def base_stamp(folder: Path) -> str:
    """Changes with what a base is loaded from, which may be a Diffusers folder.

    Links are followed, three folders deep; 2000 files count.
    """
    found: list[Path] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < _BASE_DEPTH else []
        found += [Path(place, name) for name in sorted(names) if name.endswith(_BASE_SUFFIXES)]
        if len(found) >= _BASE_FILES:
            break
    return _stamp(folder, found[:_BASE_FILES])


def _stamp(folder: Path, paths: Iterable[Path]) -> str:
    lines = [str(folder)]
    for path in paths:
        # A link to nothing has no facts, nor has what is just being replaced; whoever reads the
        # folder names what is missing.
        with contextlib.suppress(OSError):
            facts = path.stat()
            if stat.S_ISREG(facts.st_mode):
                lines.append(f"{path.relative_to(folder)} {facts.st_size} {facts.st_mtime_ns}")
    content = "\n".join(lines)
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()


def clear_leftovers(*folders: Path) -> None:
    """Remove what killed commands left where a node is about to write, and say so in the log."""
    from ...trainer_core.filesystem.temporary import remove_leftovers

    for note in remove_leftovers(*folders):
        _logger.warning(note)
