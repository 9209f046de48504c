"""A run's folder: ``<output.dir>/<output.name>/v0, v1, ...``.

A version is made whole under a temporary name and renamed, so that another run that starts at the
same moment never sees it without its lock. A version is never used by a second run; a dead one that
came to nothing is removed when the next run starts, a live one never.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, StorageError
from ..formats.workflow import WORKFLOW_KEYS
from ..storage import move, storage_error, write_and_flush, write_json, write_text

if TYPE_CHECKING:
    from types import TracebackType

MINIMUM_STEPS = 5
"""A dead version with fewer steps and no checkpoint is removed."""

_VERSION = re.compile(r"v(\d+)")
_SAMPLES = re.compile(r"\d{6,}")
_LOCK = "lock.json"
_RECORD = "run.json"
_RUN_FILE = "run.yaml"
_NEW = ".new-"
_ENDS = frozenset({"stopped_by", "non_finite"})
"""What ``run.json`` tells of how an attempt ended; the next one ends otherwise."""
# A process's start is told from the machine's, which moves when the clock is set.
_CLOCK_SECONDS = 60.0
_held: set[str] = set()
"""Tokens of the locks that this process holds; one of its own number that is not here is left over
from a run that failed to remove it, or from another process that had the number before."""


class RunFolder:
    """One version of a run on disk; leaving it gives up its lock, and an error marks it failed.

    Args:
        path: The version's folder, which exists and is locked by this process.
        token: What the lock is held by.
    """

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self._token = token

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON line per step."""
        return self.path / "metrics.jsonl"

    def samples(self, step: int) -> Path:
        """Folder of the preview pictures of a step."""
        return self.path / "samples" / f"{step:06d}"

    def drop_later_samples(self, step: int) -> None:
        """Remove the preview pictures of steps that a resumed run makes again.

        Args:
            step: The step that the run goes on from.
        """
        folder = self.path / "samples"
        found = list(folder.iterdir()) if folder.is_dir() else []
        for path in found:
            if _SAMPLES.fullmatch(path.name) and int(path.name) > step:
                shutil.rmtree(path, ignore_errors=True)

    def read_record(self) -> dict[str, Any]:
        """Read ``run.json``."""
        return json.loads((self.path / _RECORD).read_text(encoding="utf-8"))

    def update_record(self, **values: Any) -> None:
        """Change fields of ``run.json``, whole or not at all."""
        write_json(self.path / _RECORD, {**self.read_record(), **values})

    def go_on(
        self, record: Mapping[str, Any], run_file: str, workflow: Mapping[str, str] | None = None
    ) -> None:
        """Note that the run goes on, and with which settings.

        Args:
            record: Changed fields of ``run.json``.
            run_file: The resolved run file of what follows; replaces the one before.
            workflow: What of the host goes on with it, replaces the one before; without any, that
                one stays.

        Raises:
            StorageError: When the folder cannot be written.
        """
        before = self.read_record()
        kept = {name: value for name, value in before.items() if name not in _ENDS}
        write_json(self.path / _RECORD, {**kept, "status": "running", **record})
        write_text(self.path / _RUN_FILE, run_file)
        _write_workflow(self.path, workflow or {})

    def release(self) -> None:
        """Give up the lock; the version stays."""
        # First, so that a lock file that cannot be removed binds nobody.
        _held.discard(self._token)
        with contextlib.suppress(OSError):
            (self.path / _LOCK).unlink(missing_ok=True)

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
                with contextlib.suppress(StorageError, OSError, ValueError):
                    self.update_record(**_ending(kind, error))
        finally:
            self.release()


def _ending(kind: type[BaseException], error: BaseException | None) -> dict[str, Any]:
    if not issubclass(kind, KeyboardInterrupt):
        return {"status": "failed"}
    # The second signal, or the first one where nobody listens to signals: Python's own is SIGINT's.
    return {"status": "cancelled", "stopped_by": str(error) or "SIGINT"}


def create_version(
    root: Path,
    record: Mapping[str, Any],
    run_file: str,
    workflow: Mapping[str, str] | None = None,
) -> RunFolder:
    """Make the next version of a run.

    Args:
        root: ``<output.dir>/<output.name>``.
        record: First content of ``run.json``.
        run_file: The resolved run file.
        workflow: What of the host started it: ``workflow`` and ``prompt`` to their texts.

    Returns:
        The new version, locked by this process.

    Raises:
        StorageError: When the folder cannot be written.
    """
    token = uuid.uuid4().hex
    temporary = root / f"{_NEW}{token}"
    try:
        # Held before it is on the disk, or another run of this process might take it for dead.
        _held.add(token)
        try:
            temporary.mkdir(parents=True)
            write_and_flush(temporary / _LOCK, json.dumps({**_me(), "token": token}))
        except OSError as error:
            raise storage_error(root, error) from error
        write_json(temporary / _RECORD, {"status": "running", "step": 0, **_me(), **record})
        write_text(temporary / _RUN_FILE, run_file)
        _write_workflow(temporary, workflow or {})
        number = max((version_number(path) for path in versions(root)), default=-1) + 1
        remove_dead_versions(root)
        return RunFolder(_move_to_version(temporary, root, number), token)
    except BaseException:
        _held.discard(token)
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_workflow(folder: Path, texts: Mapping[str, str]) -> None:
    """Write ``workflow.json`` and ``prompt.json``; of two starts none is mixed with the other."""
    for key in WORKFLOW_KEYS if texts else ():
        path = folder / f"{key}.json"
        if key in texts:
            write_text(path, texts[key] + "\n")
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(path, error) from error


def _move_to_version(temporary: Path, root: Path, number: int) -> Path:
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

    Args:
        path: The version's folder.

    Returns:
        The version, locked by this process.

    Raises:
        InputError: When a living process works in it.
    """
    if is_live(path):
        lock = _read_lock(path)
        raise InputError(
            f"{path} is in use by process {lock['pid']} on {lock['host']}",
            "a run that has ended",
            "Wait for that run, cancel it, or start a new version with resume=none. If no such "
            f"run exists any more, remove {_LOCK} in that folder.",
        )
    token = uuid.uuid4().hex
    _held.add(token)
    try:
        write_json(path / _LOCK, {**_me(), "token": token})
    except BaseException:
        _held.discard(token)
        raise
    return RunFolder(path, token)


def versions(root: Path) -> list[Path]:
    """List a run's versions, oldest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if path.is_dir() and _VERSION.fullmatch(path.name)]
    return sorted(found, key=version_number)


def version_number(path: Path) -> int:
    """The number of a version's folder; -1 for one of another name."""
    match = _VERSION.fullmatch(path.name)
    return int(match.group(1)) if match else -1


def is_version(path: Path) -> bool:
    """Whether a folder holds the record of a run."""
    return (path / _RECORD).is_file()


def remove_dead_versions(root: Path) -> list[Path]:
    """Remove versions that ended before `MINIMUM_STEPS` without a checkpoint.

    Args:
        root: ``<output.dir>/<output.name>``.

    Returns:
        What was removed.
    """
    unfinished = list(root.glob(f"{_NEW}*")) if root.is_dir() else []
    candidates = [path for path in versions(root) if _came_to_nothing(path)]
    # An unfinished folder without a readable lock may be half a moment old; it is left alone.
    candidates += [path for path in unfinished if (path / _LOCK).is_file()]
    removed = [path for path in candidates if not is_live(path)]
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    return removed


def is_live(path: Path) -> bool:
    """Whether the process that locked a version still runs.

    A lock of another host counts as live, because its processes cannot be seen from here, and so
    does one of a process that this one may not look at.
    """
    lock = _read_lock(path)
    if not lock:
        return False
    if lock["host"] != socket.gethostname():
        return True
    if lock["pid"] == os.getpid():
        return lock["token"] in _held
    return _runs(lock["pid"], lock["process_started"])


def _came_to_nothing(path: Path) -> bool:
    if any((path / "checkpoints").glob("[0-9]*")):
        return False
    try:
        record = json.loads((path / _RECORD).read_text(encoding="utf-8"))
        status, step = record["status"], int(record["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    metrics = path / "metrics.jsonl"
    if metrics.is_file():
        with metrics.open("rb") as file:
            step = max(step, sum(1 for _ in zip(file, range(MINIMUM_STEPS), strict=False)))
    return status != "done" and step < MINIMUM_STEPS


def _me() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_started": _process_started(os.getpid()),
    }


def _runs(pid: int, started: float | None) -> bool:
    """Whether a process is the one that was started then; in doubt it is."""
    if not _exists(pid):
        return False
    now = _process_started(pid)
    return now is None or started is None or abs(now - started) < _CLOCK_SECONDS


def _exists(pid: int) -> bool:
    try:
        import psutil
    except ImportError:
        return _may_exist(pid)
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def _may_exist(pid: int) -> bool:
    if os.name == "nt":
        # The question below would be a Ctrl-C there.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _process_started(pid: int) -> float | None:
    """Seconds since the epoch; None where it cannot be known."""
    try:
        import psutil
    except ImportError:
        return None
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _read_lock(path: Path) -> dict[str, Any]:
    try:
        lock = json.loads((path / _LOCK).read_text(encoding="utf-8"))
        started = lock["process_started"]
        return {
            "host": str(lock["host"]),
            "pid": int(lock["pid"]),
            "process_started": None if started is None else float(started),
            "token": lock.get("token"),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
