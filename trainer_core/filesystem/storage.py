"""Files that are written whole or not at all (`atomic_write`), and locks that one process holds.

Everything the trainer keeps is written under a temporary name in the same folder, flushed to disk,
and renamed. A crash at any moment leaves the old file or the new one, never a half.

A lock is a file that names its owner. It appears under its name whole and only if nothing has that
name, which the file system decides; so of all that try at once exactly one gets it. The lock of a
process that has died is replaced by whoever holds a second lock beside it, and only if it is still
the one that was found dead: of all that find it, again exactly one gets it.
"""

from __future__ import annotations

import errno
import filecmp
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RESUME, InputError, StorageError
from .temporary import Owner, new_owner, patiently, temporary_beside
from .text_files import parse_json, require_regular

_SHOWN = 200  # characters of a bad path in a message
_IS_WINDOWS = os.name == "nt"
_SHORT_PATH = 248  # characters that Windows takes of a folder's path, of a file's 259


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
            _sync(temporary, os.O_RDWR)
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
        raise name_taken_error(target) from error


def claim(path: Path, target: Path) -> None:
    """Give a file a name that nothing has yet; of all that try at once exactly one succeeds.

    Args:
        path: The file; it may keep its first name too.

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


def name_taken_error(path: Path) -> InputError:
    """An error for a name that got its file while another was being written for it."""
    return InputError(
        f"{path} has come into being in the meantime",
        "a name that is free",
        "Name another output, or replace it on purpose: --overwrite.",
    )


def move(path: Path, target: Path, *, replace: bool = False) -> None:
    """Give a file or folder its final name; on Windows wait a little for who has it open.

    Args:
        target: The new name, on the same disk.
        replace: Whether a file that has it is replaced.

    Raises:
        OSError: When it cannot be renamed.
    """
    rename = path.replace if replace else path.rename
    patiently(lambda: rename(target))


def unlink(path: Path) -> None:
    """Remove a file that may be gone; on Windows wait a little for who has it open.

    Raises:
        OSError: When it cannot be removed.
    """
    patiently(lambda: path.unlink(missing_ok=True))


def same_content(path: Path, other: Path) -> bool:
    """Whether two files have the same bytes; of one that cannot be read nobody can say so."""
    filecmp.clear_cache()  # it knows files by size and time, which another one may have soon
    try:
        return filecmp.cmp(path, other, shallow=False)
    except OSError:
        return False


def write_json(path: Path, value: Any) -> None:
    """Write one JSON value atomically, indented, with a final newline."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


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
    if os.name != "nt":
        _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = patiently(lambda: os.open(path, flags))
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
            "Give write access to the folder, or choose another (for a run: output.dir or "
            "cache.dir). On Windows: close the programs that have the file open, or save under "
            "another name."
        )
        return StorageError(f"{path} cannot be written ({error.strerror})", "write access", remedy)
    named = error.filename if isinstance(error.filename, str) else path
    length = len(str(Path(named).absolute()))
    if _IS_WINDOWS and error.errno == errno.ENOENT and length >= _SHORT_PATH:
        return StorageError(
            f"{path} cannot be written: {error.strerror}, at a path of {length} characters",
            "paths that the system takes",
            f"Shorten the run's name or the folders above it, or allow paths of more than "
            f"{_SHORT_PATH} characters (LongPathsEnabled) and start Windows again.",
        )
    return StorageError(
        f"{path} cannot be written ({error})",
        "a folder that takes files",
        "Check the disk and the path, or choose another folder (for a run: output.dir or "
        "cache.dir).",
    )


def require_folder(path: Path) -> None:
    """Refuse a folder that takes no files, before work whose result is to go there.

    A first look: the folder need not exist, and what is written later may still fail.

    Raises:
        StorageError: When it takes none, or something else has its name.
    """
    place = path.absolute()
    try:
        there = next((each for each in (place, *place.parents) if os.path.lexists(each)), place)
        if not there.is_dir():
            raise NotADirectoryError(f"{there} is not a folder")
        # Asked only where it differs: some containers refuse the question.
        effective = hasattr(os, "geteuid") and os.geteuid() != os.getuid()
        allowed = os.access(there, os.W_OK | os.X_OK, effective_ids=effective)
        if _IS_WINDOWS or not allowed:  # Windows says of every folder that it may be written
            _try_entry(there, folder=there != place)
    except OSError as error:
        raise storage_error(path, error) from error


def _try_entry(place: Path, *, folder: bool) -> None:
    """Make a file or a folder and remove it: network drives say that they take none, and do."""
    try:
        with temporary_beside(place / "probe", ending="") as probe:
            # The root of a drive of Windows takes folders of everybody, and no files.
            make = probe.mkdir if folder else probe.touch
            make()
    except PermissionError as error:
        raise PermissionError(errno.EACCES, f"{place} takes no files") from error


_TAKEOVER = ".takeover"
_PAUSE_SECONDS = 0.005
_PATIENCE_SECONDS = 10.0
_LARGEST = 1 << 16
_UNREADABLE = b"\0unreadable"
"""What is known of a lock that Windows does not show: its owner may live."""


@dataclass(eq=False, slots=True)
class Lock:
    """A lock that this process holds; leaving it gives it up.

    Attributes:
        owner: This process, under the token of this lock.
    """

    path: Path
    owner: Owner

    def release(self) -> None:
        """Give it up. A file that cannot be removed binds nobody of this process."""
        try:
            # Somebody may have removed it by hand, and another have a lock there now.
            if parse_owner(_content(self.path) or b"") == self.owner:
                unlink(self.path)
        except OSError:
            pass
        finally:
            # Last, or a thread could take over what is about to be removed.
            self.owner.drop()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire(path: Path) -> Lock | None:
    """Take the lock of a file's name, in a folder that exists; None where another holds it.

    Raises:
        OSError: When it cannot be written.
    """
    owner = new_owner()
    taken = False
    try:
        taken = _take(path, owner)
    finally:
        if not taken:
            owner.drop()
    return Lock(path, owner) if taken else None


def lock_holder(path: Path) -> Owner | None:
    """Who holds a lock; None where nobody does who lives."""
    content = _content(path)
    if content is None or not _binds(path, content):
        return None
    return parse_owner(content) or Owner("unknown", 0, None, None)


def owner_record(owner: Owner) -> dict[str, Any]:
    """An owner as JSON values, under the names that lock files and ``run.json`` have for it."""
    return {"host": owner.host, "pid": owner.pid, "process_started": owner.started}


def _take(path: Path, owner: Owner) -> bool:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with temporary_beside(path) as draft:
            write_and_flush(draft, owner_text(owner))
            try:
                claim(draft, path)
            except FileExistsError:
                found = _content(path)
            else:
                return True
            if found is not None and _binds(path, found):
                return False
            if found is not None and _take_over(path, found, draft):
                return True
        # It was given up, or somebody takes it over, this very moment.
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)


def _take_over(path: Path, dead: bytes, draft: Path) -> bool:
    """Replace a dead lock, if it is still there and nobody else is about to."""
    # Whoever dies here leaves a lock that is taken over in the same way.
    guard = acquire(path.with_name(path.name + _TAKEOVER))
    if guard is None:
        return False
    with guard:
        if _content(path) != dead:
            return False
        move(draft, path, replace=True)
        return True


def _binds(path: Path, content: bytes) -> bool:
    if content == _UNREADABLE:
        return True
    owner = parse_owner(content)
    if owner is not None:
        return owner.is_alive()
    # On a disk without links the name is there a moment before the content is.
    try:
        return abs(time.time() - path.stat().st_mtime) < _PATIENCE_SECONDS
    except OSError:
        return False


def _content(path: Path) -> bytes | None:
    """What a lock's file holds; None without a file."""
    try:
        require_regular(path)
        with patiently(lambda: path.open("rb")) as file:
            return file.read(_LARGEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        # Elsewhere it is another account's, which says nothing of the owner.
        hidden = _IS_WINDOWS and isinstance(error, PermissionError)
        return _UNREADABLE if hidden else b""


def owner_text(owner: Owner) -> str:
    """An owner as the JSON text that locks, claims and tables have."""
    return json.dumps({**owner_record(owner), "token": owner.token})


def parse_owner(content: bytes) -> Owner | None:
    """The owner that such a text names; None where it names none."""
    try:
        lock = parse_json(content)
        started = lock["process_started"]
        return Owner(
            str(lock["host"]),
            int(lock["pid"]),
            None if started is None else float(started),
            None if lock.get("token") is None else str(lock["token"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
