"""Files that are either whole or absent.

Everything the trainer keeps is written under a temporary name in the same folder, flushed to disk,
and renamed. A crash at any moment leaves the old file or the new one, never a half.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import RESUME, InputError, StorageError
from .temporary import temporary_beside

_SHOWN = 200  # characters of a bad path in a message
# Windows refuses to move what somebody has open, be it a virus scanner that looks at a new file.
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0) if os.name == "nt" else ()


def given_path(text: str, what: str = "the path of a file or folder") -> Path:
    """Turn what somebody wrote into a path that can be looked at; it need not be there.

    Args:
        text: A path, which may begin with ``~``.
        what: What it is to be, for the message.

    Raises:
        InputError: When it is empty, no path, or the system refuses to look at it: a name that is
            too long, an unknown user's home, a folder without permission.
    """
    try:
        if not text.strip():
            raise ValueError("it is empty")
        path = Path(text).expanduser()
        _look_at(path)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise InputError(
            f"{shown!r} cannot be looked at ({reason})",
            what,
            "Correct the path, or its permissions.",
        ) from error
    return path


def _look_at(path: Path) -> None:
    """Fail as whatever looks into a file or folder would."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(mode):
        os.scandir(path).close()
        os.stat(os.path.join(path, os.curdir))  # noqa: PTH116, PTH118 - a Path drops the dot


def atomic_write(path: Path, write: Callable[[Path], object], *, replace: bool = True) -> None:
    """Write a file so that a crash cannot leave a part of it.

    Args:
        path: The final name; its folder is made if it is missing.
        write: Writes the whole content to the path that it is given.
        replace: Whether a file of that name is replaced, also one that came while this was written.

    Raises:
        InputError: When something has the name and is not to be replaced.
        StorageError: When the disk is full or the folder cannot be written.
    """
    with temporary_beside(path) as temporary:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            _flush(temporary)
            if replace:
                move(temporary, path, replace=True)
            else:
                _claim_or_refuse(temporary, path)
            flush_folder(path.parent)
        except OSError as error:
            raise storage_error(path, error) from error


def _claim_or_refuse(path: Path, target: Path) -> None:
    try:
        claim(path, target)
    except FileExistsError as error:
        raise taken(target) from error


def claim(path: Path, target: Path) -> None:
    """Give a file a name that nothing has yet; of all that try at once exactly one succeeds.

    Args:
        path: The file; it may keep its first name too.
        target: The new name, on the same disk.

    Raises:
        FileExistsError: When something has the name, even since a moment ago.
        OSError: When the file cannot be given it.
    """
    try:
        target.hardlink_to(path)
    except FileExistsError:
        raise
    except OSError:
        claim_without_links(path, target)


def claim_without_links(path: Path, target: Path) -> None:
    """What `claim` does on a disk that knows no links, such as FAT's.

    Raises:
        FileExistsError: When something has the name.
        OSError: When the file cannot be given it.
    """
    if os.name != "nt":
        # An empty file holds the name for the moment until the whole one replaces it. Windows
        # needs none: it never renames onto a name that is taken.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        move(path, target, replace=True)
        return
    move(path, target)


def taken(path: Path) -> InputError:
    """An error for a name that got its file while another was being written for it."""
    return InputError(
        f"{path} has come into being in the meantime",
        "a name that is free",
        "Name another output, or replace it on purpose: --overwrite.",
    )


def move(path: Path, target: Path, *, replace: bool = False) -> None:
    """Give a file or folder its final name; on Windows wait a little for who has it open.

    Args:
        path: What to rename.
        target: The new name, on the same disk.
        replace: Whether an existing file of that name is replaced.

    Raises:
        OSError: When it cannot be renamed.
    """
    rename = path.replace if replace else path.rename
    _patiently(lambda: rename(target))


def unlink(path: Path) -> None:
    """Remove a file that may be gone; on Windows wait a little for who has it open.

    Raises:
        OSError: When it cannot be removed.
    """
    _patiently(lambda: path.unlink(missing_ok=True))


def _patiently(action: Callable[[], object]) -> None:
    for pause in _PAUSES:
        try:
            action()
        except PermissionError:
            time.sleep(pause)
        else:
            return
    action()


def write_json(path: Path, value: Any) -> None:
    """Write one JSON value atomically, indented, with a final newline."""
    text = json.dumps(value, indent=2, sort_keys=False, allow_nan=False) + "\n"
    atomic_write(path, lambda target: write_and_flush(target, text))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically as UTF-8."""
    atomic_write(path, lambda target: write_and_flush(target, text))


def write_and_flush(path: Path, text: str) -> None:
    """Write a text file and wait until it is on the disk; not atomic by itself."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make a rename durable. Does nothing where folders cannot be opened (Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def storage_error(path: Path, error: OSError) -> StorageError:
    """Explain a failed write in three parts."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        remedy = f"Free some space and start again with {RESUME}; finished files are intact."
        return StorageError(f"the disk is full while writing {path}", "enough free space", remedy)
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        remedy = (
            "Give write access to the folder, or choose another (for a run: output.dir). On "
            "Windows: close the programs that have the file open, or save under another name."
        )
        return StorageError(f"{path} cannot be written ({error.strerror})", "write access", remedy)
    return StorageError(
        f"{path} cannot be written ({error})",
        "a folder that takes files",
        "Check the disk and the path, or choose another folder (for a run: output.dir).",
    )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
