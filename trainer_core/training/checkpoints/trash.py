"""The trash: runs and checkpoints that were cleaned away, and can be put back for a while.

An entry of the trash is a folder with a lock, a note of what is in it, and the parts themselves,
which were renamed, never copied. The name of the note says how far the work is, so that a process
that is killed at any moment leaves parts where they were, or in an entry whose note says what
becomes of them: `sweep` puts back what was not moved completely, and removes the rest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError, StorageError
from ...filesystem.allowed_folders import AllowedFolders
from ...filesystem.file_names import name_mistake
from ...filesystem.storage import Lock, acquire, lock_holder, move, storage_error, write_json
from ...filesystem.temporary import remove, remove_leftovers, temporary_beside
from ...filesystem.text_files import read_object
from .run_folder import MINIMUM_STEPS, move_to_version, open_version, read_record, version_number
from .run_names import CHECKPOINTS, LOCK, SAMPLES, TRASH, VERSION

WHOLE = "run"
"""The part that is a version with all that is in it."""

PARTS = (CHECKPOINTS, SAMPLES, WHOLE)
_MOVING, _MOVED, _GOING = "moving.json", "moved.json", "going.json"
_LARGEST_NOTE = 4096
_ENTRY = re.compile("[0-9a-f]{16}")
_LIFE = ("pid", "host", "process_started", "started")
"""What ``run.json`` has that another run of the same name has otherwise, and that changes when the
run goes on."""


def disk_use(version: Path) -> dict[str, dict[str, int]]:
    """Bytes below a version's folder and how many things they are, by what they are for.

    Returns:
        ``checkpoints``, ``samples``, ``adapters`` and ``rest`` to ``count`` and ``bytes``. What a
        link leads to is not counted.
    """
    found = {part: {"count": 0, "bytes": 0} for part in (CHECKPOINTS, SAMPLES, "adapters", "rest")}
    for place, folders, names in os.walk(version):
        top = Path(place).relative_to(version).parts[:1]
        if top == (CHECKPOINTS,) and Path(place).name == CHECKPOINTS:
            found[CHECKPOINTS]["count"] += sum(name.isdecimal() for name in folders)
        for name in names:
            adapter = not top and name.endswith(".safetensors")
            part = top[0] if top and top[0] in found else "adapters" if adapter else "rest"
            found[part]["count"] += part != CHECKPOINTS
            try:
                found[part]["bytes"] += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118
            except OSError:
                continue  # it has gone since
    return found


class Trash:
    """What was cleaned away in a folder of runs; used by several threads.

    Args:
        root: ``<output.dir>``, the folder of all runs.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._folder = root, root / TRASH
        self._held: dict[str, Lock] = {}
        self._working = threading.Lock()

    def clean(self, run: str, parts: Sequence[str]) -> None:
        """Move parts of a run into the trash, all of them or none.

        Args:
            run: Name and version of a run that is there.
            parts: Some of `PARTS`.

        Raises:
            InputError: When it is not a version of a run, has none of them, or somebody works in
                it.
            StorageError: When something cannot be moved; all is where it was.
        """
        version = self._root / run
        if version_number(version) < 0:
            raise InputError(
                f"{run[:80]} is not a run",
                "a version of a run, such as my_adapter/v0",
                "Choose a run of the list.",
            )
        wanted = [WHOLE] if WHOLE in parts else [part for part in PARTS if part in parts]
        places = {part: version / part if part != WHOLE else version for part in wanted}
        there = [part for part, place in places.items() if place.is_dir()]
        if not there:
            raise InputError(
                f"{run} has nothing of {', '.join(map(str, parts))[:80] or 'nothing'}",
                f"one or more of {', '.join(PARTS)}",
                "Look at the run again: somebody may have removed it.",
            )
        with self._working:
            lock = open_version(version)
            try:
                if there == [CHECKPOINTS] or there == [CHECKPOINTS, SAMPLES]:
                    _require_some_steps(version)
                self._move(version, run, {part: places[part] for part in there})
            finally:
                lock.release()

    def _move(self, version: Path, run: str, places: Mapping[str, Path]) -> None:
        note = {"run": run, "parts": [*places], "life": _life(version)}
        try:
            entry = self._new_entry(note)
            try:
                for part, place in places.items():
                    move(place, entry / part)
                move(entry / _MOVING, entry / _MOVED)
            except BaseException:
                if self._put_back(entry, note):
                    self._forget(entry)
                raise
        except (OSError, StorageError) as error:
            reason = storage_error(version, error) if isinstance(error, OSError) else error
            raise StorageError(
                f"{run} was not cleaned up: {reason.found}",
                "a folder of runs that takes files, on one disk",
                "Nothing is lost. Empty the trash, remove a file by hand, or look at the folder's "
                "permissions, and try again.",
            ) from error

    def _new_entry(self, note: Mapping[str, Any]) -> Path:
        self._folder.mkdir(exist_ok=True)
        AllowedFolders([self._root]).require(self._folder, "trash")
        remove_leftovers(self._folder)
        entry = self._folder / os.urandom(8).hex()
        # Nobody may see an entry without its lock and its note.
        with temporary_beside(entry, ending="") as draft:
            draft.mkdir()
            lock = acquire(draft / LOCK)
            assert lock is not None, "nobody else knows it"
            try:
                write_json(draft / _MOVING, note)
                move(draft, entry)
            except BaseException:
                lock.release()
                raise
        lock.path = entry / LOCK
        self._held[entry.name] = lock
        return entry

    def entries(self) -> list[dict[str, Any]]:
        """What can be put back, the newest first: ``id``, ``run``, ``parts`` and ``bytes``."""
        found: list[tuple[float, dict[str, Any]]] = []
        for name in [*self._held]:
            entry = self._folder / name
            note = _note(entry)
            if note is None:
                continue
            size = sum(each["bytes"] for each in disk_use(entry).values())
            row = {"id": name, "run": note["run"], "parts": note["parts"], "bytes": size}
            # It may be put back this very moment.
            with contextlib.suppress(OSError):
                found.append((entry.stat().st_mtime, row))
        return [row for _, row in sorted(found, key=lambda each: -each[0])]

    def restore(self, name: str) -> str:
        """Put an entry back, by its ``id``.

        Returns:
            The run as it is called now: another one may have its version since.

        Raises:
            InputError: When there is no such entry, or the run has others of its parts by now.
            StorageError: When it cannot be moved; it is in the trash still.
        """
        with self._working:
            entry = self._folder / name
            note = _note(entry) if name in self._held else None
            if note is None:
                raise InputError(
                    f"the trash has no {name[:40]!r}",
                    "something that was cleaned up since ComfyUI was started",
                    "Look at the tab again.",
                )
            version = self._root / note["run"]
            try:
                if note["parts"] == [WHOLE]:
                    version.parent.mkdir(parents=True, exist_ok=True)
                    number = version_number(version)
                    version = move_to_version(entry / WHOLE, version.parent, number)
                else:
                    self._restore_parts(entry, version, note)
                self._forget(entry)
            except OSError as error:
                raise storage_error(version, error) from error
            return f"{version.parent.name}/{version.name}"

    def _restore_parts(self, entry: Path, version: Path, note: Mapping[str, Any]) -> None:
        def refuse(what: str) -> InputError:
            return InputError(
                f"{note['run']} {what}",
                "the run as it was when it was cleaned up",
                f"What was cleaned up lies in {entry} until the trash is emptied.",
            )

        if not version.is_dir():
            raise refuse("is gone")
        # Only under its lock the run stays as it is found.
        lock = open_version(version)
        try:
            if _life(version) != note.get("life"):
                raise refuse("is another run by now, or went on")
            if taken := [part for part in note["parts"] if not _is_free(version / part)]:
                raise refuse(f"has other {taken[0]} by now")
            if (entry / _MOVED).exists():
                move(entry / _MOVED, entry / _MOVING)
            if not self._put_back(entry, note):
                raise FileExistsError(errno.EEXIST, "something has its name", str(version))
        finally:
            lock.release()

    def _put_back(self, entry: Path, note: Mapping[str, Any]) -> bool:
        """Move parts to where they were, unless something is there; says whether none is left."""
        version = self._root / note["run"]
        for part in note["parts"]:
            target = version if part == WHOLE else version / part
            if os.path.lexists(entry / part) and _is_free(target):
                with contextlib.suppress(FileNotFoundError):
                    target.rmdir()
                move(entry / part, target)
        return not any(os.path.lexists(entry / part) for part in note["parts"])

    def empty(self) -> None:
        """Remove all that this process could put back."""
        with self._working:
            for name in [*self._held]:
                entry = self._folder / name
                for state in (_MOVED, _MOVING):
                    if (entry / state).exists():
                        # Half of it is not to be put back.
                        move(entry / state, entry / _GOING)
                self._forget(entry)

    def sweep(self) -> None:
        """Remove what processes that have ended left in the trash; half moved, it is put back."""
        with self._working:
            remove_leftovers(self._folder)
            for entry in _entries(self._folder):
                # Of several that start at once one does it.
                if (
                    not _is_ours(entry)
                    or entry.name in self._held
                    or lock_holder(entry / LOCK) is not None
                ):
                    continue
                lock = acquire(entry / LOCK)
                if lock is None:
                    continue
                self._held[entry.name] = lock
                note = _note(entry) if (entry / _MOVING).exists() else {"parts": []}
                if note is not None and (not note["parts"] or self._put_back(entry, note)):
                    self._forget(entry)

    def _forget(self, entry: Path) -> None:
        parts = [entry / part for part in PARTS]
        for part in parts:
            remove(part)
        # What is open stays on Windows; its note lets a later start remove it.
        if not any(map(os.path.lexists, parts)):
            remove(entry)
        lock = self._held.pop(entry.name, None)
        if lock is not None:
            lock.release()


def _entries(folder: Path) -> Iterator[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return
    yield from (each for each in found if each.name[0] != "." and each.is_dir())


def _is_free(target: Path) -> bool:
    """Whether nothing, or an empty folder, has a name in a folder that is there."""
    if not os.path.lexists(target):
        return target.parent.is_dir()
    try:
        return not target.is_symlink() and not any(target.iterdir())
    except OSError:
        return False


def _is_ours(entry: Path) -> bool:
    """Whether a trash made a folder, of which a process that was killed may have removed much."""
    known = (_MOVING, _MOVED, _GOING, LOCK)
    return bool(_ENTRY.fullmatch(entry.name)) and any((entry / each).is_file() for each in known)


def _note(entry: Path) -> dict[str, Any] | None:
    """What an entry holds; None of one that goes, or that nobody of ours has made."""
    state = next((each for each in (_MOVED, _MOVING) if (entry / each).is_file()), None)
    if state is None:
        return None
    try:
        note = read_object(entry / state, lambda reason: InputError(reason, "", ""), _LARGEST_NOTE)
    except InputError:
        return None
    run, parts = str(note.get("run")).split("/"), note.get("parts")
    plain = (
        len(run) == 2
        and not name_mistake(run[0], new=False)
        and VERSION.fullmatch(run[1]) is not None
    )
    known = isinstance(parts, list) and all(each in PARTS for each in parts)
    return note if plain and known else None


def _life(version: Path) -> dict[str, Any]:
    try:
        record = read_record(version)
    except InputError:
        record = {}
    return {key: record.get(key) for key in _LIFE}


def _require_some_steps(version: Path) -> None:
    """Refuse what would make a run one that the next start removes (`remove_dead_versions`)."""
    try:
        record = read_record(version)
        done, steps = record["status"] == "done", int(record["step"])
    except (InputError, ValueError, LookupError, TypeError, OverflowError):
        return
    if not done and steps < MINIMUM_STEPS:
        raise InputError(
            f"without checkpoints nothing is left of this run, which made {steps} steps",
            f"a run of {MINIMUM_STEPS} steps or more",
            "Clean up the run as a whole.",
        )
