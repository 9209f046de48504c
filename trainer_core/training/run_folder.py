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
from typing import Any

from ..errors import InputError
from ..storage import move, storage_error, write_and_flush, write_json, write_text

MINIMUM_STEPS = 5
"""A dead version with fewer steps and no checkpoint is removed."""

_VERSION = re.compile(r"v(\d+)")
_LOCK = "lock.json"
_RECORD = "run.json"
_NEW = ".new-"


class RunFolder:
    """One version of a run on disk.

    Args:
        path: The version's folder, which exists and is locked by this process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

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

    def read_record(self) -> dict[str, Any]:
        """Read ``run.json``."""
        return json.loads((self.path / _RECORD).read_text(encoding="utf-8"))

    def update_record(self, **values: Any) -> None:
        """Change fields of ``run.json``, whole or not at all."""
        write_json(self.path / _RECORD, {**self.read_record(), **values})

    def release(self) -> None:
        """Give up the lock; the version stays."""
        with contextlib.suppress(OSError):
            (self.path / _LOCK).unlink(missing_ok=True)


def create_version(root: Path, record: Mapping[str, Any], run_file: str) -> RunFolder:
    """Make the next version of a run.

    Args:
        root: ``<output.dir>/<output.name>``.
        record: First content of ``run.json``.
        run_file: The resolved run file.

    Returns:
        The new version, locked by this process.

    Raises:
        StorageError: When the folder cannot be written.
    """
    temporary = root / f"{_NEW}{uuid.uuid4().hex}"
    try:
        temporary.mkdir(parents=True)
        write_and_flush(temporary / _LOCK, json.dumps(_me()))
    except OSError as error:
        raise storage_error(root, error) from error
    write_json(temporary / _RECORD, {"status": "running", "step": 0, **_me(), **record})
    write_text(temporary / "run.yaml", run_file)
    number = max((int(_number(path)) for path in versions(root)), default=-1) + 1
    remove_dead_versions(root)
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
            return RunFolder(target)


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
            "Wait for that run, cancel it, or start a new version with resume=none.",
        )
    write_json(path / _LOCK, _me())
    return RunFolder(path)


def versions(root: Path) -> list[Path]:
    """List a run's versions, oldest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if path.is_dir() and _VERSION.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(_number(path)))


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

    A lock of another host counts as live, because its processes cannot be seen from here.
    """
    lock = _read_lock(path)
    if not lock:
        return False
    if lock["host"] != socket.gethostname():
        return True
    started = _process_started(lock["pid"])
    return started is not None and abs(started - lock["process_started"]) < 1.0


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


def _number(path: Path) -> str:
    match = _VERSION.fullmatch(path.name)
    return match.group(1) if match else "-1"


def _me() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_started": _process_started(os.getpid()),
    }


def _process_started(pid: int) -> float | None:
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
    except psutil.AccessDenied:
        return 0.0


def _read_lock(path: Path) -> dict[str, Any]:
    try:
        lock = json.loads((path / _LOCK).read_text(encoding="utf-8"))
        return {
            "host": str(lock["host"]),
            "pid": int(lock["pid"]),
            "process_started": float(lock["process_started"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
