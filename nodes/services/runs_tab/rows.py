"""The rows of the runs tab: what is on disk of every run, each folder read once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ....trainer_core.errors import InputError
from ....trainer_core.filesystem.text_files import read_object
from ....trainer_core.inference.preview_files import preview_files
from ....trainer_core.training.checkpoints.run_names import METRICS, RECORD, SAMPLES, VERSION
from ..panel.history import Place, last_steps, read_ending

NOTES = "notes.json"
"""What a user wrote about a run, in its version folder."""

LARGEST_NOTE = 16 * 2**10
_LONGEST_TEXT = 4000
_MOST_TAGS = 20
_LONGEST_TAG = 40

_rows: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
"""The row of each run, and the times of change of what it was read from."""

_Folder = Mapping[str, os.DirEntry[str]]


def listed_runs(root: Path, place: Place) -> list[dict[str, Any]]:
    """A row for each run below a folder; one that cannot be read or has failed has its ``reason``.

    `place` tells where the browser finds an image.
    """
    found = {name: _row(name, Path(path), inside, place) for name, path, inside in _versions(root)}
    for gone in _rows.keys() - found.keys():
        _rows.pop(gone, None)
    return [*found.values()]


def _versions(root: Path) -> Iterator[tuple[str, str, _Folder]]:
    """Name, folder and what lies in it of each run; none to which a link leads out."""
    # The folder itself may be a link.
    within = os.path.realpath(root) + os.sep

    def entries(place: str | Path) -> Iterator[os.DirEntry[str]]:
        with contextlib.suppress(OSError), os.scandir(place) as found:
            for each in found:
                # Windows has junctions, which call themselves folders.
                may_lead_out = os.name == "nt" or each.is_symlink()
                if not may_lead_out or os.path.realpath(each.path).startswith(within):
                    yield each

    for run in entries(root):
        for version in entries(run.path):
            if VERSION.fullmatch(version.name):
                inside = {each.name: each for each in entries(version.path)}
                if RECORD in inside:
                    yield f"{run.name}/{version.name}", version.path, inside


def _row(name: str, folder: Path, inside: _Folder, place: Place) -> dict[str, Any]:
    stamp = tuple(_changed(inside.get(each)) for each in (RECORD, METRICS, SAMPLES, NOTES))
    known = _rows.get(name)
    # Whether a run still trains is in no file: its process may be gone.
    if known is not None and known[0] == stamp and known[1]["status"] != "running":
        return known[1]
    notes = read_notes(folder) if NOTES in inside else checked_notes({})
    row: dict[str, Any] = {"run": name, "changed": max(stamp) / 1e9, **notes}
    try:
        ending = read_ending(folder)
        row |= {"status": ending.status, "step": ending.step, "steps": ending.steps}
        row |= {"reason": ending.reason} if ending.reason else {}
    except InputError as error:
        row |= {"status": "damaged", "step": 0, "steps": 0, "reason": error.found}
    last = last_steps(folder / METRICS) if METRICS in inside else []
    if last:
        row["step"] = max(row["step"], last[-1][0])
        row["loss"] = sum(loss for _, loss, *_ in last) / len(last)
    row["sample"] = _newest_sample(folder / SAMPLES, place) if SAMPLES in inside else None
    _rows[name] = (stamp, row)
    return row


def _changed(entry: os.DirEntry[str] | None) -> int:
    try:
        return 0 if entry is None else entry.stat().st_mtime_ns
    except OSError:
        return 0


def _newest_sample(folder: Path, place: Place) -> Mapping[str, str] | None:
    try:
        steps = [path for path in folder.iterdir() if path.name.isdecimal()]
        files = preview_files(max(steps, key=lambda path: int(path.name)))
    except (OSError, ValueError):
        return None
    return place(files[0]) if files else None


def read_notes(folder: Path) -> dict[str, Any]:
    """What a user wrote about a run; what cannot be read is none."""
    kept: Mapping[str, Any] = {}
    with contextlib.suppress(InputError):
        kept = read_object(folder / NOTES, _unreadable, LARGEST_NOTE)
    return checked_notes(kept)


def _unreadable(reason: str) -> InputError:
    return InputError(f"{NOTES}: {reason}", "a note of the runs tab", "Write it again.")


def checked_notes(kept: Mapping[str, Any]) -> dict[str, Any]:
    """A note, tags and the star, as they are kept; what is none of them is left out."""
    note, tags = kept.get("note"), kept.get("tags")
    words = [each for each in tags if isinstance(each, str)] if isinstance(tags, list) else []
    return {
        "note": note[:_LONGEST_TEXT] if isinstance(note, str) else "",
        "tags": [each[:_LONGEST_TAG] for each in words[:_MOST_TAGS]],
        "favourite": kept.get("favourite") is True,
    }
