"""Answers the panel: the run that it shows at a node, and what its buttons do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....trainer_core.errors import InputError, TrainerError
from ....trainer_core.filesystem.text_files import parse_object
from ....trainer_core.training.checkpoints.run_names import CHECKPOINTS
from ...host import comfy_host
from ...host.folders import saved_checkpoints
from ..graph_words import in_graph_words
from ..loras_folder import copy_adapter
from ..rerun_stamps import CONTINUED, Continuation
from .history import read_ending, read_run_file
from .matching_runs import (
    differences_from,
    marked_forms,
    nearest_run,
    run_name,
    run_state,
    versions_of,
)
from .prompt_settings import LARGEST_PROMPT, SEED, STEPS, node_of, words_of
from .run_states import ACTIVE, PANEL

_CONTINUE, _LEAVE, _USE = "continue", "leave", "use"
_LONGEST_ID = 200
_LARGEST_REQUEST = 4096  # bytes
_MOST_STEPS = 10_000_000


def shown_state(query: Mapping[str, str], body: bytes = b"") -> tuple[Any, int]:
    """What the browser is told when it asks for a node's run, and the HTTP status.

    Args:
        query: ``node_id``; ``name`` and ``workflow`` of the node, if the browser knows them, which
            nodes of other workflows do not share; ``run``, the name and version that the node
            shows, and ``exact`` when it has to be that one.
        body: The graph as it would be queued, as ``prompt``; without it the last run is shown.

    Returns:
        The run, or with 404 a ``reason``, which is empty where there is nothing to say; with
        ``refused``, an error, where the node began no run of this graph since.
    """
    prompt = (parse_object(body, LARGEST_PROMPT) or {}).get("prompt") if body else None
    prompt = prompt if isinstance(prompt, Mapping) and not query.get("exact") else None
    found, status = _shown_run(query, prompt)
    refusal = PANEL.refusal(query.get("node_id", ""))
    if prompt is None or refusal is None or (found or {}).get("status") in ACTIVE:
        return found, status
    inputs = node_of(prompt, query["node_id"])[1]
    wanted = marked_forms(prompt, query["node_id"])[0].settings
    if refusal.is_of(query.get("workflow", ""), inputs, wanted):
        found = {**(found or {"reason": ""}), "refused": refusal.error}
    return found, status


def _shown_run(query: Mapping[str, str], prompt: Mapping[str, Any] | None) -> tuple[Any, int]:
    node_id, run, exact = query.get("node_id", ""), query.get("run", ""), query.get("exact")
    found = PANEL.snapshot(node_id)
    active = found.get("status") in ACTIVE
    mine = bool(found) and all(
        not query.get(name) or found[name] in {"", query[name]} for name in ("name", "workflow")
    )
    if exact:
        mine = active or found.get("run") == run
    if prompt is not None and mine:
        # Tabs of one template share their nodes' ids, and a name that is empty is the folder's.
        name = run_name(query, prompt)
        mine = not name or found["name"] == name
    if prompt is not None and not (mine and active):
        return _of_settings(query, prompt, found if mine else {})
    if not mine:
        found = _on_disk(query, run)
    return found, 200 if found else 404


def _of_settings(
    query: Mapping[str, str], prompt: Mapping[str, Any], found: dict[str, Any]
) -> tuple[Any, int]:
    """The run that a graph asks for; what is known of the node's last one saves a look."""
    node_id, kept = query.get("node_id", ""), query.get("run", "")
    wanted, last = marked_forms(prompt, node_id), PANEL.asked(node_id)
    own = wanted[0].settings
    if found and not found["run"] and (last is None or not own.differences(last, finished=True)):
        return found, 200  # it has failed before it had a folder
    versions = versions_of(run_name(query, prompt), kept or found.get("run", ""))
    nearest = nearest_run(versions, wanted, {kept, found.get("run", "")})
    if nearest is None:
        return {"reason": ""}, 404
    far, run, differences = nearest
    sentence = "; ".join(differences.values())
    if far > 1:
        return {"reason": f"These settings start a new run: {sentence}."}, 404
    if run != found.get("run"):
        found = _on_disk(query, run, prompt)
    notes = found.get("notes", [])
    if differences:
        notes += [f"Run starts a new run: {sentence}. Continue goes on with the seed of this one."]
    if node_of(prompt, node_id)[1].get("resume") is False:
        notes += ["resume is off: a Run that trains again starts a new run."]
    return found or {"reason": ""}, 200 if found else 404


def _on_disk(
    query: Mapping[str, str], run: str, prompt: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A run that the server has forgotten, or never had; the names may come from anybody."""
    node_id = query.get("node_id", "")
    try:
        state = run_state(comfy_host.run_path(run), run, node_id, query.get("workflow", ""))
    except InputError:
        return {}
    if prompt is not None:
        state.words = words_of(prompt, node_id)
    if state.status == "training":
        state.status = "lost"  # the node does not train it
    if query.get("exact") and len(node_id) <= _LONGEST_ID:
        # ComfyUI has just given the node this run's outputs again.
        PANEL.show_again(state)
    return state.snapshot()


def taken_request(body: bytes) -> tuple[Any, int]:
    """What the browser is told when a button of the panel was pressed, and the HTTP status."""
    request = parse_object(body, LARGEST_PROMPT)
    # Only a graph is long.
    if request is None or (len(body) > _LARGEST_REQUEST and "prompt" not in request):
        return {"taken": False, "reason": "not a JSON object"}, 400
    node_id, wish = str(request.get("node_id", "")), str(request.get("wish", ""))
    if wish == _LEAVE:
        CONTINUED.forget(node_id)
        return {"taken": True}, 200
    if wish == _CONTINUE and 0 < len(node_id) <= _LONGEST_ID:
        reason, taken = _continued(node_id, request)
        return {"taken": taken, "reason": reason}, 200 if taken else 409
    if wish == _USE:
        reason, taken = _used(request)
        return {"taken": taken, "reason": reason}, 200 if taken else 409
    reason = PANEL.request(node_id, wish)
    return ({"taken": False, "reason": reason}, 409) if reason else ({"taken": True}, 200)


def _used(request: Mapping[str, Any]) -> tuple[str, bool]:
    """Copy the adapter of a checkpoint into the loras folder, also of a run that trains."""
    step = request.get("step")
    if not (isinstance(step, int) and 0 <= step <= _MOST_STEPS):
        return f"step is {str(step)[:20]!r}, not a number of steps", False
    try:
        folder = comfy_host.run_path(str(request.get("run") or ""))
        name = copy_adapter(folder / CHECKPOINTS / f"{step:06d}", folder.parent.name, step).name
    except (TrainerError, OSError) as error:
        known = isinstance(error, TrainerError)
        return in_graph_words(f"{error.found}. {error.remedy}") if known else str(error), False
    return f"{name} is in the loras folder. Choose it in Load LoRA; this run is as it was.", True


def _continued(node_id: str, request: Mapping[str, Any]) -> tuple[str, bool]:
    """Let a node's run go on, for more steps where ``steps`` says how many in all.

    It goes on from its newest checkpoint, or from that of a ``step``. Gives what is to be said, and
    whether it goes on.
    """
    run, prompt, steps = str(request.get("run") or ""), request.get("prompt"), request.get("steps")
    shown = PANEL.snapshot(node_id)
    if shown.get("status") in ACTIVE and (not run or shown["name"] == run.split("/")[0]):
        return "this node is training", False
    if steps is not None and not (isinstance(steps, int) and 0 < steps <= _MOST_STEPS):
        return f"steps is {str(steps)[:20]!r}, not a number of steps", False
    if not run:
        CONTINUED.note(node_id, Continuation(steps=steps or 0))
        return "Queued.", True
    try:
        folder = comfy_host.run_path(run)
        ending = read_ending(folder)
    except InputError as error:
        return error.found, False
    if isinstance(prompt, Mapping):
        differences = differences_from(folder, ending, marked_forms(prompt, node_id)) or {}
        # It keeps its seed, and is as long as it is asked to be.
        differences.pop(SEED, None)
        if steps is not None:
            differences.pop(STEPS, None)
        if differences:
            sentence = "; ".join(differences.values())
            return f"These settings start a new run: {sentence}. Press Run to start it.", False
    return _promise(node_id, run, folder, step=request.get("step"), steps=steps or 0)


def _promise(node_id: str, run: str, folder: Path, *, step: object, steps: int) -> tuple[str, bool]:
    """Promise a node's next run the newest checkpoint, or that of a step."""
    saved = {int(each.name): each for each in saved_checkpoints(folder)}
    seed = read_run_file(folder)[1]
    if step is not None:
        if not isinstance(step, int) or step not in saved:
            return f"{run} has no checkpoint of step {str(step)[:20]}", False
        CONTINUED.note(node_id, Continuation(saved[step], seed, steps))
        return f"Queued. It goes on from step {step}, and makes the steps behind it again.", True
    if not saved:
        CONTINUED.note(node_id, Continuation())
        return f"Queued. {run} has no checkpoint, so it begins anew.", True
    CONTINUED.note(node_id, Continuation(folder, seed, steps))
    return f"Queued. It goes on from step {max(saved)}.", True
