"""Names that come from a graph, kept inside the folders that ComfyUI allows.

A workflow may come from a stranger: no name in it may lead anywhere else, by ``..``, an absolute
path, a drive letter, a network path, a device name, a link or an odd character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..trainer_core.errors import InputError

_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.I)
_FORBIDDEN = set('<>:"|?*\\')
_LONGEST = 240


def checked_parts(name: str, what: str) -> tuple[str, ...]:
    """Split a relative name into parts that are safe on every system.

    Args:
        name: Such as ``datasets/cats``; parts are separated by ``/``.
        what: What the error calls it.

    Raises:
        InputError: When a part could lead out of a folder or is no file name somewhere.
    """
    parts = tuple(part for part in name.split("/"))
    for part in parts:
        reason = _reason_against(part)
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


def _reason_against(part: str) -> str:
    if not part.strip() or part in {".", ".."}:
        return "an empty part, '.' or '..'"
    if part != unicodedata.normalize("NFC", part):
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


def resolve_below(name: str, roots: Mapping[str, Sequence[Path]], what: str) -> Path:
    """Find the file or folder that a graph names.

    Args:
        name: ``<root>/<path below it>``.
        roots: Allowed folders by the name that a graph uses for them.
        what: What the error calls it.

    Returns:
        The existing path.

    Raises:
        InputError: When it does not exist, or a link leads out of the root.
    """
    first, *rest = checked_parts(name, what)
    for root in roots.get(first, ()):
        path = root.joinpath(*rest)
        if not path.exists():
            continue
        if not path.resolve().is_relative_to(root.resolve()):
            raise InputError(
                f"{what}: {name} is a link that leads out of {first}",
                "a file or folder that lies there itself",
                _ADD_ROOT,
            )
        return path
    raise InputError(
        f"{what}: there is no {name}",
        "something below " + ", ".join(sorted(roots)),
        _ADD_ROOT,
    )


_ADD_ROOT = (
    "Choose from the list after a refresh (key R), move it there, or add its folder to "
    "extra_model_paths.yaml (for datasets under the key 'datasets') and restart ComfyUI."
)


def folders_below(roots: Mapping[str, Sequence[Path]], depth: int = 2) -> list[str]:
    """List the folders that a graph may name, for a combo box.

    Args:
        roots: Allowed folders by name.
        depth: How deep to look.

    Returns:
        Names as `resolve_below` takes them, sorted within each root.
    """
    found: list[str] = []
    for name, places in roots.items():
        names: set[str] = set()
        for root in places:
            names.update(_names_below(root, depth))
        found += [f"{name}/{each}" for each in sorted(names)]
    return found


def _names_below(root: Path, depth: int) -> list[str]:
    if depth == 0 or not root.is_dir():
        return []
    names: list[str] = []
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    for entry in entries:
        if entry.name.startswith((".", "_")) or _reason_against(entry.name):
            continue
        if entry.is_symlink() or not entry.is_dir():
            continue
        names.append(entry.name)
        names += [f"{entry.name}/{each}" for each in _names_below(entry, depth - 1)]
    return names
