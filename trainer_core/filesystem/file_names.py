"""Which names a file or folder may have, so that every system can keep it and nobody is misled.

One rule for the names of runs, of adapters and of what a graph names: letters of any script,
digits, spaces and signs, emoji too, but nothing that leads to another folder or hides.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import PurePath

LONGEST_NAME = 120
"""Bytes in UTF-8 of a new name: endings, numbers and temporary names still fit behind it."""

_JPEG = {".jpg", ".jpeg", ".jpe", ".jfif", ".pjpeg", ".pjp"}
_HEIC = {".heic", ".heif", ".hif"}
IMAGE_EXTENSIONS = frozenset({".png", ".webp", ".bmp", ".avif"} | _JPEG | _HEIC)
"""Extensions of images that are read, those of phones and cameras where their decoder is there."""

FRAME_FOLDER = ".frames"
"""What the name of a folder ends in whose images are the frames of one clip."""

CLIP_EXTENSIONS = frozenset({".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", FRAME_FOLDER})
"""Extensions of clips, which bases of videos train."""

MOVING_EXTENSIONS = frozenset({".gif", ".webp"})
"""Extensions of images that may move: bases of videos train those that do as clips."""

ONLY_CLIPS = CLIP_EXTENSIONS | (MOVING_EXTENSIONS - IMAGE_EXTENSIONS)
"""Extensions that a folder has clips by, and no images: a WebP may be either."""

FOREIGN_EXTENSIONS = frozenset({".gif", ".tif", ".tiff", ".jxl", ".jp2", ".tga", ".apng"})
"""Extensions of images that are not read; leaving them out in silence would surprise."""

_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")


def leads_out(path: PurePath) -> bool:
    r"""Whether a path may lead out of the folder that it is put behind.

    On Windows one with a drive (``C:a``) or in front of all folders (``\a``) does, and is no
    absolute one.
    """
    return bool(path.anchor) or ".." in path.parts


def leads_to_windows(path: str) -> bool:
    """Whether a path has a drive's letter or a server, as on Windows, where this is another system.

    There it would be the name of a file in the current folder.
    """
    return os.name != "nt" and _OF_WINDOWS.match(path) is not None


def missing_in_words(path: str) -> str:
    """What is said of a path at which nothing is."""
    return "is a path of Windows" if leads_to_windows(path) else "does not exist"


EXPECTED = (
    'letters of any script, digits, spaces and signs such as - _ . ( ) +; no / \\ : * ? " < > |, '
    f"no dot or space at the end, at most {LONGEST_NAME} bytes"
)
"""What `name_mistake` asks for, in words."""

_PORTS = (f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³")
_DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$", *_PORTS}
_FORBIDDEN = set('<>:"|?*\\/')
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Persian and many scripts of India cannot be written without these two, nor can many emoji.
_JOINERS = {"\u200c", "\u200d"}


def name_mistake(name: str, *, new: bool = True) -> str:
    """What is wrong with a name of a single file or folder, or nothing.

    Args:
        new: Whether something of this name will be made. Names that exist may be longer, and have
            loose accents, as macOS writes them.
    """
    if not name.strip() or name in {".", ".."}:
        return "an empty part, '.' or '..'"
    if new and name != unicodedata.normalize("NFC", name):
        return "letters with loose accents"
    if any(_is_hidden(name, at) for at in range(len(name))):
        return "invisible characters"
    if _FORBIDDEN & set(name):
        return "a character that is not part of a name on some system"
    if name[-1] in ". " or name[0] == " ":
        return "a space or dot at the end, or a space in front"
    # Windows takes 'con.txt' for the device 'con'.
    if name.strip().partition(".")[0].strip().lower() in _DEVICES:
        return "the name of a device on Windows"
    if new and name[0] in ".-":
        return "a dot or hyphen in front"
    if new and len(name.encode()) > LONGEST_NAME:
        return f"{len(name.encode())} bytes long"
    return ""


def _is_hidden(name: str, at: int) -> bool:
    if name[at] in _JOINERS:
        # Between two signs of such a script; anywhere else it would only make two names look alike.
        around = name[at - 1 : at] + name[at + 1 : at + 2]
        return len(around) < 2 or around.isascii() or not all(map(_joins, around))
    return unicodedata.category(name[at]) in _HIDDEN


def _joins(letter: str) -> bool:
    return not letter.isascii() and unicodedata.category(letter)[0] in "LMS"
