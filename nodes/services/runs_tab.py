"""What the runs tab shows and keeps: the routes below ``/adapter_trainer/runs``.

Everything is read from the run folders, so that it survives restarts, and runs of the command line
in the output folder are among it.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...trainer_core.config.reading import load_config
from ...trainer_core.errors import InputError, StorageError, TrainerError
from ...trainer_core.filesystem.storage import atomic_write, write_json
from ...trainer_core.filesystem.text_files import parse_object, read_object
from ...trainer_core.inference.preview_files import preview_files
from ..host import comfy_host
from ..host.served_files import html_page
from .adapter_files import place_of_copy
from .panel import PANEL
from .run_choice import run_state
from .run_history import read_ending, read_step

_Answer = tuple[Any, int]

NOTES = "notes.json"
"""What a user wrote about a run, in its version folder."""

_LARGEST_NOTE = 16 * 2**10
_LONGEST_TEXT = 4000
_MOST_TAGS = 20
_LONGEST_TAG = 40
_TAIL = 8192
"""Bytes at the end of a metrics file that hold the last steps."""

_rows: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
"""The row of each run, and the times of change of what it was read from."""


def _listed(query: Mapping[str, str], body: bytes) -> _Answer:
    """All runs, the newest first; one that cannot be read is listed with its reason."""
    root = comfy_host.output_folder()
    names = comfy_host.run_names()
    for gone in _rows.keys() - set(names):
        _rows.pop(gone, None)
    within = root.resolve()
    # The folder itself may be a link; one of a run that leads out of it is passed over.
    inside = [name for name in names if (root / name).resolve().is_relative_to(within)]
    return {"runs": [_row(root / name, name) for name in inside]}, 200


def _row(folder: Path, name: str) -> dict[str, Any]:
    read_from = ("run.json", "metrics.jsonl", "samples", NOTES)
    stamp = tuple(_changed(folder / each) for each in read_from)
    known = _rows.get(name)
    # Whether a run still trains is in no file: its process may be gone.
    if known is not None and known[0] == stamp and known[1]["status"] != "running":
        return known[1]
    row: dict[str, Any] = {"run": name, "changed": max(stamp) / 1e9, **_notes(folder)}
    try:
        ending = read_ending(folder)
        row |= {"status": ending.status, "step": ending.step, "steps": ending.steps}
    except InputError as error:
        row |= {"status": "damaged", "step": 0, "steps": 0, "reason": error.found}
    last = _last_steps(folder / "metrics.jsonl")
    if last:
        row["step"] = max(row["step"], last[-1][0])
        row["loss"] = sum(loss for _, loss in last) / len(last)
    row["sample"] = _newest_sample(folder / "samples")
    _rows[name] = (stamp, row)
    return row


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _last_steps(path: Path) -> list[tuple[int, float]]:
    """Step and loss of the last steps, read from the end of a file that may be long."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [step[:2] for line in lines if (step := read_step(line))]


def _newest_sample(folder: Path) -> dict[str, str] | None:
    try:
        steps = [path for path in folder.iterdir() if path.name.isdecimal()]
        files = preview_files(max(steps, key=lambda path: int(path.name)))
    except (OSError, ValueError):
        return None
    return comfy_host.output_place(files[0]) if files else None


def _notes(folder: Path) -> dict[str, Any]:
    kept: Mapping[str, Any] = {}
    with contextlib.suppress(InputError):
        kept = read_object(folder / NOTES, _unreadable, _LARGEST_NOTE)
    return _checked_notes(kept)


def _unreadable(reason: str) -> InputError:
    return InputError(f"{NOTES}: {reason}", "a note of the runs tab", "Write it again.")


def _checked_notes(kept: Mapping[str, Any]) -> dict[str, Any]:
    """A note, tags and the star, as they are kept; what is none of them is left out."""
    note, tags = kept.get("note"), kept.get("tags")
    words = [each for each in tags if isinstance(each, str)] if isinstance(tags, list) else []
    return {
        "note": note[:_LONGEST_TEXT] if isinstance(note, str) else "",
        "tags": [each[:_LONGEST_TAG] for each in words[:_MOST_TAGS]],
        "favourite": kept.get("favourite") is True,
    }


def _one(query: Mapping[str, str], body: bytes) -> _Answer:
    """A run's course and settings, where its adapter is, and the node that trains it now."""
    name = query.get("run", "")
    folder = comfy_host.run_path(name)
    live = PANEL.live(name)
    settings: dict[str, Any] = {}
    # One that another version wrote may have settings that are unknown here.
    with contextlib.suppress(InputError):
        settings = load_config(folder / "run.yaml").model_dump(mode="json")
    adapter = _adapter(folder)
    return {
        "run": live or run_state(folder, name).snapshot(),
        "node": live.get("node_id", ""),
        "settings": dict(_flat(settings)),
        "adapter": str(adapter or ""),
    }, 200


def _adapter(folder: Path) -> Path | None:
    """The run's adapter: that of ComfyUI's layout, else the one whose name says least more."""
    files = sorted(folder.glob("*.safetensors"))
    return min(files, key=lambda each: len(each.name), default=None)


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        inner = isinstance(value, Mapping) and value
        found += _flat(value, f"{before}{key}.") if inner else [(f"{before}{key}", value)]
    return found


def _noted(query: Mapping[str, str], body: bytes) -> _Answer:
    """Keep a run's note, tags and star."""
    request = _request(body)
    folder = comfy_host.run_path(str(request.get("run", "")))
    kept = _checked_notes(request)
    write_json(folder / NOTES, kept)
    return kept, 200


def _used(query: Mapping[str, str], body: bytes) -> _Answer:
    """Copy a run's adapter into the loras folder, where it is not there already."""
    folder = comfy_host.run_path(str(_request(body).get("run", "")))
    adapter = _adapter(folder)
    if adapter is None:
        raise InputError(
            "the run has no adapter file that Load LoRA reads",
            "a run that has ended, or was stopped and kept, in layout comfyui, kohya or lycoris",
            "Let it go on, or write one with Load Run and Save Adapter.",
        )
    target = place_of_copy(adapter, f"{folder.parent.name}_{folder.name}")
    if not target.exists():
        atomic_write(target, functools.partial(shutil.copyfile, adapter))
    return {"lora": target.relative_to(comfy_host.loras_folder()).as_posix()}, 200


def _request(body: bytes) -> Mapping[str, Any]:
    request = parse_object(body, _LARGEST_NOTE)
    if request is None:
        raise InputError(
            "the request is no JSON object, or too large",
            f"an object of at most {_LARGEST_NOTE} bytes",
            "Shorten the note.",
        )
    return request


def _page(query: Mapping[str, str], body: bytes) -> _Answer:
    """A run as one HTML page that can be saved and passed on."""
    from ...trainer_core.training.run_page import run_page

    folder = comfy_host.run_path(query.get("run", ""))
    return html_page(run_page(folder).encode("utf-8")), 200


ROUTES = {"list": _listed, "one": _one, "note": _noted, "use": _used, "page": _page}


def answer(name: str, query: Mapping[str, str], body: bytes) -> _Answer:
    """What the browser is told, and the HTTP status; a refusal has its ``reason``."""
    try:
        return ROUTES[name](query, body)
    except StorageError as error:
        return {"reason": f"{error.found}. {error.remedy}"}, 507
    except (TrainerError, OSError) as error:
        found = f"{error.found}. {error.remedy}" if isinstance(error, TrainerError) else str(error)
        return {"reason": found}, 404
