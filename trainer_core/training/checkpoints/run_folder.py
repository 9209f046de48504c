"""A run's version folders, ``v0, v1, ...``: created, found, locked, and their ``run.json``.

A version is made whole under a temporary name and renamed, so that another run that starts at the
same moment never sees it without its lock. A version is never used by a second run; a dead one that
came to nothing is removed when the next run starts, a live one never.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import InputError, StorageError, TrainerError
from ...filesystem.storage import (
    Lock,
    Owner,
    acquire,
    lock_holder,
    move,
    owner_record,
    storage_error,
    unlink,
    write_json,
    write_text,
)
from ...filesystem.temporary import remove_leftovers, temporary_beside
from ...filesystem.text_files import read_object
from .run_names import CHECKPOINTS, LOCK, METRICS, RECORD, RUN_FILE, SAMPLES, VERSION

MINIMUM_STEPS = 5
"""A dead version with fewer steps and no checkpoint is removed."""

_SAMPLES = re.compile(r"\d{6,}")
ASKED = "asked_steps"
"""Where ``run.json`` keeps the steps that the settings asked for, of a run that was made longer."""
REASON = "reason"
"""Where ``run.json`` keeps the message of the error that ended a run."""
_LONGEST_REASON = 4000
_ENDS = frozenset({"stopped_by", "non_finite", REASON})
"""What ``run.json`` tells of how an attempt ended; the next one ends otherwise."""


class RunFolder:
    """One version of a run on disk; leaving it gives up its lock, and an error marks it failed.

    Args:
        lock: Its lock, held by this process.
        removed: Versions that came to nothing and were removed for it.
    """

    def __init__(self, path: Path, lock: Lock, removed: Sequence[Path] = ()) -> None:
        self.path = path
        self._lock = lock
        self._removed = removed

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def metrics(self) -> Path:
        """One JSON line per step."""
        return self.path / METRICS

    def samples(self, step: int) -> Path:
        """Folder of the preview images of a step."""
        return self.path / SAMPLES / f"{step:06d}"

    def drop_later_samples(self, step: int) -> None:
        """Remove the preview images of steps that a resumed run makes again."""
        folder = self.path / SAMPLES
        found = list(folder.iterdir()) if folder.is_dir() else []
        for path in found:
            if _SAMPLES.fullmatch(path.name) and int(path.name) > step:
                shutil.rmtree(path, ignore_errors=True)

    def read_record(self) -> dict[str, Any]:
        """Read ``run.json``.

        Raises:
            InputError: When it is damaged.
        """
        return read_record(self.path)

    def update_record(self, **values: Any) -> None:
        """Change fields of ``run.json``, whole or not at all."""
        write_json(self.path / RECORD, {**self.read_record(), **values})

    def go_on(
        self, facts: Mapping[str, Any], run_file: str, workflow: Mapping[str, str] | None = None
    ) -> None:
        """Note that the run goes on, in this process, and with which settings.

        Args:
            facts: Changed fields of ``run.json``.
            run_file: The resolved run file of what follows; replaces the one before.
            workflow: What of the host goes on with it, replaces the one before; without any, that
                one stays.

        Raises:
            StorageError: When the folder cannot be written.
        """
        before = self.read_record()
        kept = {name: value for name, value in before.items() if name not in _ENDS}
        me = owner_record(self._lock.owner)
        write_json(self.path / RECORD, {**kept, "status": "running", **me, **facts})
        write_text(self.path / RUN_FILE, run_file)
        _write_workflow(self.path, workflow or {})

    def release(self) -> None:
        """Give up the lock; the version stays."""
        self._lock.release()

    def remove_leftovers(self) -> list[str]:
        """Remove what killed runs of this name left unfinished.

        Returns:
            What was removed, also when the version was made, in sentences.
        """
        images = sorted((self.path / SAMPLES).glob("[0-9]*"))
        versions = [
            f"Removed {path}, which ended before step {MINIMUM_STEPS} without a checkpoint."
            for path in self._removed
        ]
        return versions + remove_leftovers(self.path.parent, self.path, self.checkpoints, *images)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is not None:
                # On a full disk this fails too; the error that ended the run is the one to show.
                with contextlib.suppress(StorageError, InputError, OSError, ValueError):
                    self.update_record(**_ending(kind, error))
        finally:
            self.release()


def _ending(kind: type[BaseException], error: BaseException | None) -> dict[str, Any]:
    if not issubclass(kind, KeyboardInterrupt):
        text = str(error) if isinstance(error, TrainerError) else f"{kind.__name__}: {error}"
        return {"status": "failed", REASON: text[:_LONGEST_REASON]}
    # The second signal, or the first one where nobody listens to signals: Python's own is SIGINT's.
    return {"status": "cancelled", "stopped_by": str(error) or "SIGINT"}


def create_version(
    root: Path, facts: Mapping[str, Any], run_file: str, workflow: Mapping[str, str] | None = None
) -> RunFolder:
    """Make the next version of a run.

    Args:
        root: ``<output.dir>/<output.name>``.
        facts: First content of ``run.json``.
        workflow: What of the host started it: ``workflow`` and ``prompt`` to their texts.

    Returns:
        The new version, locked by this process.

    Raises:
        StorageError: When the folder cannot be written.
    """
    with temporary_beside(root / "v", ending="") as temporary:
        lock = _lock_new(temporary)
        try:
            me = owner_record(lock.owner)
            write_json(temporary / RECORD, {"status": "running", "step": 0, **me, **facts})
            write_text(temporary / RUN_FILE, run_file)
            _write_workflow(temporary, workflow or {})
            number = max((version_number(path) for path in versions(root)), default=-1) + 1
            path = move_to_version(temporary, root, number)
        except BaseException:
            lock.release()
            raise
    lock.path = path / LOCK
    # Afterwards: the number of a version that is removed is not to be the next one's.
    return RunFolder(path, lock, remove_dead_versions(root))


def _lock_new(folder: Path) -> Lock:
    """Make a folder that nobody else knows, with a lock in it."""
    try:
        folder.mkdir(parents=True)
        lock = acquire(folder / LOCK)
    except OSError as error:
        raise storage_error(folder.parent, error) from error
    assert lock is not None, "nobody else can have it"
    return lock


def _write_workflow(folder: Path, texts: Mapping[str, str]) -> None:
    """Write ``workflow.json`` and ``prompt.json``; of two starts none is mixed with the other."""
    from ...adapter_files.metadata import WORKFLOW_KEYS  # needs torch; looking for a run does not

    for key in WORKFLOW_KEYS if texts else ():
        path = folder / f"{key}.json"
        if key in texts:
            write_text(path, texts[key] + "\n")
            continue
        try:
            unlink(path)
        except OSError as error:
            raise storage_error(path, error) from error


def move_to_version(temporary: Path, root: Path, number: int) -> Path:
    """Make a folder a version of a run: of this number, or of the next one that is free.

    Raises:
        StorageError: When it cannot be moved.
    """
    while True:
        target = root / f"v{number}"
        try:
            # A rename onto a folder with content fails, so two runs cannot get one version.
            move(temporary, target)
        except OSError as error:
            if not target.exists():
                raise storage_error(target, error) from error
            number += 1
        else:
            return target


def open_version(path: Path) -> RunFolder:
    """Take over a version to resume it.

    Returns:
        The version, locked by this process.

    Raises:
        InputError: When a living process works in it.
        StorageError: When the folder cannot be written.
    """
    try:
        lock = acquire(path / LOCK)
    except OSError as error:
        raise storage_error(path / LOCK, error) from error
    if lock is not None:
        return RunFolder(path, lock)
    raise _in_use(path, lock_holder(path / LOCK))


def require_open(path: Path) -> None:
    """Refuse a version that `open_version` would refuse, before anything is loaded for it.

    Raises:
        InputError: When a living process works in it, or its record is damaged.
    """
    if owner := lock_holder(path / LOCK):
        raise _in_use(path, owner)
    read_record(path)


def _in_use(path: Path, owner: Owner | None) -> InputError:
    by = "another process" if owner is None else f"process {owner.pid} on {owner.host}"
    return InputError(
        f"{path} is in use by {by}",
        "a run that has ended",
        "Wait for that run, cancel it, or start a new version with resume=none. If no such "
        f"run exists any more, remove {LOCK} in that folder.",
    )


def versions(root: Path) -> list[Path]:
    """List a run's versions, oldest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if path.is_dir() and VERSION.fullmatch(path.name)]
    return sorted(found, key=version_number)


def version_number(path: Path) -> int:
    """The number of a version's folder; -1 for one of another name."""
    match = VERSION.fullmatch(path.name)
    return int(match.group(1)) if match else -1


def is_version(path: Path) -> bool:
    """Whether a folder holds the record of a run."""
    return (path / RECORD).is_file()


def find_version(path: Path, holding: str = RECORD) -> Path:
    """The version that a path means: one, the one that a file lies in, or the newest of a run.

    Args:
        path: A version's folder, a file in it, or the folder ``<output.dir>/<output.name>``.
        holding: The file that the version must have; of a run the newest that has it is taken.

    Returns:
        The version's folder, absolute.

    Raises:
        InputError: When it is none, or no version has the file.
    """
    place = (path.parent if path.is_file() else path).absolute()
    known = [each for each in (place, *reversed(versions(place))) if is_version(each)]
    found = next((each for each in known if (each / holding).is_file()), None)
    if found is not None:
        return found
    raise InputError(
        f"{path} has no {holding}" if known else f"{path} is not a run",
        f"the folder of a run, such as output/NAME, or of one of its versions, such as "
        f"output/NAME/v0, with a {holding}",
        "Name a run that has a checkpoint: the rest of a run is written with each."
        if known
        else "Look into output.dir for the runs there are.",
    )


def run_file_of(version: Path) -> Path:
    """The resolved run file of a version.

    Raises:
        InputError: When it is not there.
    """
    path = version / RUN_FILE
    if not path.is_file():
        raise InputError(
            f"{version} has no {RUN_FILE}",
            "the run file that the trainer keeps of every run",
            "Put it back from a copy.",
        )
    return path


def remove_dead_versions(root: Path) -> list[Path]:
    """Remove versions that ended before `MINIMUM_STEPS` without a checkpoint.

    Args:
        root: ``<output.dir>/<output.name>``.
    """
    return [path for path in versions(root) if _came_to_nothing(path) and _remove(path)]


def _remove(path: Path) -> bool:
    """Remove a version unless somebody works in it; nobody can take it up meanwhile."""
    with contextlib.suppress(OSError):
        lock = acquire(path / LOCK)
        if lock is None:
            return False
        with lock, temporary_beside(path) as gone:
            # It may have been taken up, and left again, since it was looked at.
            if _came_to_nothing(path):
                move(path, gone)
                return True
    return False


def is_live(path: Path) -> bool:
    """Whether the process that locked a version still runs.

    A lock of another host counts as live, because its processes cannot be seen from here, and so
    does one of a process that this one may not look at.
    """
    return lock_holder(path / LOCK) is not None


def _came_to_nothing(path: Path) -> bool:
    if any((path / CHECKPOINTS).glob("[0-9]*")):
        return False
    try:
        record = read_record(path)
        status, step = record["status"], int(record["step"])
    except (InputError, ValueError, KeyError, TypeError, OverflowError):
        return False
    metrics = path / METRICS
    if metrics.is_file():
        with metrics.open("rb") as file:
            step = max(step, sum(1 for _ in zip(file, range(MINIMUM_STEPS), strict=False)))
    return status != "done" and step < MINIMUM_STEPS


def read_record(version: Path) -> dict[str, Any]:
    """Read the record of a run, ``run.json``.

    Raises:
        InputError: When there is none, or it is damaged.
    """

    def refuse(reason: str) -> InputError:
        return InputError(
            f"{version}: {RECORD} cannot be read ({reason})",
            "the record that the trainer keeps of every run",
            "Start a new version with resume=none, or put the file back from a copy.",
        )

    return read_object(version / RECORD, refuse)


def run_status(version: Path, record: Mapping[str, Any]) -> str:
    """How a run has ended by its record, or that it runs; ``lost`` where its process is gone."""
    status = str(record.get("status", "unknown"))
    return "lost" if status == "running" and not is_live(version) else status


def failure_reason(record: Mapping[str, Any]) -> str:
    """The message of the error that ended a run; empty where none did."""
    found = record.get(REASON)
    return found if isinstance(found, str) and record.get("status") == "failed" else ""


def made_longer(version: Path, steps: int) -> int:
    """How long a run is for settings that ask for a number of steps.

    Whoever names a run and makes it longer does so once: it stays as long, and its settings are
    those that it began with.

    Args:
        steps: Steps that the settings ask for.
    """
    try:
        record = read_record(version)
        return max(steps, int(record["steps"])) if record[ASKED] == steps else steps
    except (InputError, ValueError, LookupError, TypeError, OverflowError):
        return steps
