"""What the runs tab asks and has done: the routes below ``/adapter_trainer/runs``.

Everything is read from the run folders, so that it survives restarts, and runs of the command line
in the output folder are among it.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....trainer_core.config.read_run_file import load_config
from ....trainer_core.errors import InputError, StorageError, TrainerError
from ....trainer_core.filesystem.storage import atomic_write, write_json
from ....trainer_core.filesystem.text_files import parse_object
from ....trainer_core.training.checkpoints.run_names import RUN_FILE, VERSION
from ...host import comfy_host
from ...host.file_manager import file_manager, show_folder
from ...host.folders import saved_checkpoints
from ...host.served_files import html_page
from ..loras_folder import place_of_copy
from ..panel.matching_runs import run_state
from ..panel.run_states import PANEL
from .rows import LARGEST_NOTE, NOTES, checked_notes, listed_runs

_Answer = tuple[Any, int]


_making_trash = threading.Lock()


def _trash() -> Any:
    # Two would not see each other's entries.
    with _making_trash:
        return _only_trash()


@functools.cache
def _only_trash() -> Any:
    from ....trainer_core.training.checkpoints.trash import Trash

    return Trash(comfy_host.output_folder())


def sweep_trash() -> None:
    """Remove what was cleaned up before ComfyUI was started."""
    with contextlib.suppress(TrainerError, OSError):
        _trash().sweep()


def _rows() -> list[dict[str, Any]]:
    return listed_runs(comfy_host.output_folder(), comfy_host.output_place)


def _one(query: Mapping[str, str], body: bytes) -> _Answer:
    """A run's course and settings, what it has on disk, and the node that trains it now."""
    from ....trainer_core.training.checkpoints.trash import disk_use

    name = query.get("run", "")
    folder = _folder_of(name)
    live = PANEL.live(name)
    settings: dict[str, Any] = {}
    # One that another version wrote may have settings that are unknown here.
    with contextlib.suppress(InputError):
        settings = load_config(folder / RUN_FILE).model_dump(mode="json")
    adapter = _adapter(folder)
    return {
        "run": live or run_state(folder, name).snapshot(),
        "node": live.get("node_id", ""),
        "settings": dict(_flat(settings)),
        "adapter": str(adapter or ""),
        "folder": str(folder.absolute()),
        "opens": comfy_host.is_asked_from_here() and file_manager() is not None,
        "checkpoints": [int(each.name) for each in saved_checkpoints(folder)],
        "disk": {} if live else disk_use(folder),
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
    request, folder = _named(body)
    kept = checked_notes(request)
    write_json(folder / NOTES, kept)
    return kept, 200


def _used(query: Mapping[str, str], body: bytes) -> _Answer:
    """Copy a run's adapter into the loras folder, where it is not there already."""
    _, folder = _named(body)
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


def _curve(query: Mapping[str, str], body: bytes) -> _Answer:
    """Something that a run has measured, or what follows on a step."""
    from .curves import read_curve

    folder = _folder_of(query.get("run", ""))
    after = query.get("after", "")
    known = int(after) if after.isdecimal() and len(after) < len("10000000000") else 0
    return read_curve(folder, query.get("name", ""), known, query.get("course", "")), 200


def _sizes(query: Mapping[str, str], body: bytes) -> _Answer:
    """How many bytes each run takes."""
    from ....trainer_core.training.checkpoints.trash import disk_use

    root = comfy_host.output_folder()
    uses = {row["run"]: disk_use(root / row["run"]) for row in _rows()}
    return {run: sum(each["bytes"] for each in use.values()) for run, use in uses.items()}, 200


def _queued(query: Mapping[str, str], body: bytes) -> _Answer:
    from .queued_trainings import queued_trainings

    return {"queue": queued_trainings()}, 200


def _trashed(query: Mapping[str, str], body: bytes) -> _Answer:
    """What was cleaned up and can be put back."""
    return {"trash": _trash().entries()}, 200


def _cleaned(query: Mapping[str, str], body: bytes) -> _Answer:
    """Move parts of a run into the trash."""
    request, folder = _named(body)
    parts = request.get("parts")
    wanted = [str(each) for each in parts] if isinstance(parts, list) else []
    _trash().clean(f"{folder.parent.name}/{folder.name}", wanted)
    return _trashed(query, body)


def _restored(query: Mapping[str, str], body: bytes) -> _Answer:
    """Put something back that was cleaned up."""
    run = _trash().restore(str(_request(body).get("id", "")))
    return {"run": run, "trash": _trash().entries()}, 200


def _emptied(query: Mapping[str, str], body: bytes) -> _Answer:
    """Remove for good what was cleaned up."""
    _request(body)
    _trash().empty()
    return _trashed(query, body)


def _opened(query: Mapping[str, str], body: bytes) -> _Answer:
    """Show a run's folder on the machine that ComfyUI runs on, to whoever sits there."""
    _, folder = _named(body)
    program = file_manager() if comfy_host.is_asked_from_here() else None
    if program is None:
        raise InputError(
            "the folder cannot be shown from here",
            "a browser on the machine that ComfyUI runs on, with a desktop",
            f"Copy its path: {folder.absolute()}",
        )
    show_folder(program, folder)
    return {}, 200


def _named(body: bytes) -> tuple[Mapping[str, Any], Path]:
    """A request, and the folder of the run that it names."""
    request = _request(body)
    return request, _folder_of(str(request.get("run", "")))


def _folder_of(run: str) -> Path:
    """The folder of a run of the list; none that lies deeper, as what the trash holds does."""
    _, _, version = run.partition("/")
    if not VERSION.fullmatch(version):
        raise InputError(
            f"{run[:80]!r} names no run",
            "a run's name and version, such as my_adapter/v0",
            "Choose a run from the list.",
        )
    return comfy_host.run_path(run)


def _request(body: bytes) -> Mapping[str, Any]:
    request = parse_object(body, LARGEST_NOTE)
    if request is None:
        raise InputError(
            "the request is not a JSON object, or too large",
            f"an object of at most {LARGEST_NOTE} bytes",
            "Shorten the note.",
        )
    return request


def _page(query: Mapping[str, str], body: bytes) -> _Answer:
    """A run as one HTML page that can be saved and passed on."""
    from ....trainer_core.training.run_page import run_page

    folder = _folder_of(query.get("run", ""))
    return html_page(run_page(folder).encode("utf-8")), 200


ROUTES = {
    "GET": {
        "list": lambda query, body: ({"runs": _rows()}, 200),
        "one": _one,
        "page": _page,
        "curve": _curve,
        "sizes": _sizes,
        "queue": _queued,
        "trash": _trashed,
    },
    "POST": {
        "note": _noted,
        "use": _used,
        "clean": _cleaned,
        "restore": _restored,
        "empty": _emptied,
        "open": _opened,
    },
}


def answer(method: str, name: str, query: Mapping[str, str], body: bytes) -> _Answer:
    """What the browser is told, and the HTTP status; a refusal has its ``reason``."""
    try:
        return ROUTES[method][name](query, body)
    except StorageError as error:
        return {"reason": f"{error.found}. {error.remedy}"}, 507
    except (TrainerError, OSError) as error:
        found = f"{error.found}. {error.remedy}" if isinstance(error, TrainerError) else str(error)
        return {"reason": found}, 404
