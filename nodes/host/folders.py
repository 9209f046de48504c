"""Names that come from a graph, kept inside the folders that ComfyUI allows.

A workflow may come from a stranger: no name in it may lead anywhere else, by ``..``, an absolute
path, a drive letter, a network path, a device name or an odd character. Links that lead out are
refused for datasets, runs and new files; what lies inside of those is checked where it is read
(`allowed_folders`). In the folders of models they are followed, as ComfyUI does it: a workflow
cannot make one, and the caches that models are downloaded to consist of them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from ...trainer_core.errors import InputError
from ...trainer_core.filesystem.allowed_folders import AllowedFolders

_logger = logging.getLogger(__name__)
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.I)
_FORBIDDEN = set('<>:"|?*\\')
_LONGEST = 240
_BASE_SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
_BASE_DEPTH = 3
_BASE_FILES = 2000


def checked_parts(name: str, what: str, *, new: bool = True) -> tuple[str, ...]:
    """Split a relative name into parts that are safe on every system.

    Args:
        name: Such as ``datasets/cats``; parts are separated by ``/``.
        what: What the error calls it.
        new: Whether something of this name will be made. Names that exist may have loose accents,
            as macOS writes them.

    Raises:
        InputError: When a part could lead out of a folder or is no file name somewhere.
    """
    parts = tuple(part for part in name.split("/"))
    for part in parts:
        reason = _reason_against(part, new=new)
        if reason:
            raise InputError(
                f"{what}: {name!r} ({reason})",
                "a plain name, or plain names separated by /",
                "Choose a name from the list, or one of letters, digits, spaces, '-', '_' and '.'.",
            )
    windows = PureWindowsPath(name)
    if PurePosixPath(name).is_absolute() or windows.drive or windows.root or len(name) > _LONGEST:
        raise InputError(
            f"{what}: {name[:80]!r} is a path of its own, or too long",
            "a name below one of ComfyUI's folders",
            "Choose a name from the list.",
        )
    return parts


def _reason_against(part: str, *, new: bool) -> str:
    if not part.strip() or part in {".", ".."}:
        return "an empty part, '.' or '..'"
    if new and part != unicodedata.normalize("NFC", part):
        return "letters with loose accents"
    categories = {unicodedata.category(letter) for letter in part}
    if categories & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        return "invisible characters"
    if _FORBIDDEN & set(part) or "/" in part:
        return "a character that is no part of a name on some system"
    if part[-1] in ". " or part[0] == " ":
        return "a space or dot at the end, or a space in front"
    if _DEVICES.fullmatch(part.strip()):
        return "the name of a device on Windows"
    return ""


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
        what: What the error calls it.
        links: Whether links that lead out of the root are followed.
        remedy: What the error says to do.

    Returns:
        The existing path.

    Raises:
        InputError: When it does not exist, or a link leads out of the root and is not followed.
    """
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
    """List the folders that a graph may name, for a combo box.

    Args:
        roots: Allowed folders by name.
        depth: How deep to look.
        skipped: A folder that is left out, with everything below it.

    Returns:
        Names as `resolve_below` takes them, sorted within each root.
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
        if entry.name.startswith((".", "_")) or _reason_against(entry.name, new=False):
            continue
        if entry == skipped or entry.is_symlink() or not entry.is_dir():
            continue
        names.append(entry.name)
        names += [f"{entry.name}/{each}" for each in _names_below(entry, depth - 1, skipped)]
    return names


def saved_checkpoints(version: Path) -> list[Path]:
    """The whole checkpoints of a run's version, oldest first.

    The trainer lists them alike, but its module brings torch, which a start must not load.

    Args:
        version: The version's folder.
    """
    found = [path for path in version.glob("checkpoints/[0-9]*") if path.name.isdecimal()]
    whole = [path for path in found if (path / "state.json").is_file()]
    return sorted(whole, key=lambda path: int(path.name))


def base_stamp(folder: Path) -> str:
    """A hash of names, sizes and times of what a base is loaded from.

    Args:
        folder: A Diffusers folder. Links are followed, three folders deep; 2000 files count.
    """
    lines: list[str] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        below = Path(place).relative_to(folder)
        folders[:] = sorted(folders) if len(below.parts) < _BASE_DEPTH else []
        for name in sorted(names):
            path = Path(place, name)
            # A link to nothing has no facts; the base's own check names what is missing.
            if name.endswith(_BASE_SUFFIXES) and path.is_file():
                facts = path.stat()
                lines.append(f"{below / name} {facts.st_size} {facts.st_mtime_ns}")
        if len(lines) >= _BASE_FILES:
            break
    content = "\n".join([str(folder), *lines[:_BASE_FILES]])
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()


def clear_leftovers(*folders: Path) -> None:
    """Remove what killed commands left where a node is about to write, and say so in the log.

    Args:
        folders: Where something is about to be written; some may be absent.
    """
    from ...trainer_core.filesystem.temporary import remove_leftovers

    for note in remove_leftovers(*folders):
        _logger.warning(note)
