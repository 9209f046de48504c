"""Answers the panel: which run a node's settings mean, and what its buttons do.

A run belongs to its settings. Of all versions of a name the one is meant that was asked for the
same; where there is none, these settings start a new run, and that is what is said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....trainer_core.errors import InputError, TrainerError
from ....trainer_core.filesystem.text_files import parse_object
from ....trainer_core.training.checkpoints.run_names import CHECKPOINTS, METRICS
from ...host import comfy_host
from ...host.folders import saved_checkpoints
from ..datasets.content_marks import with_marks
from ..loras_folder import copy_adapter
from ..rerun_stamps import CONTINUED, Continuation
from .history import Ending, last_steps, read_ending, read_run_file
from .prompt_settings import (
    LARGEST_PROMPT,
    SEED,
    STEPS,
    Form,
    kept_forms,
    kept_panel,
    node_of,
    setting_forms,
)
from .run_states import ACTIVE, PANEL, RunState

_CONTINUE, _LEAVE, _USE = "continue", "leave", "use"
_LONGEST_ID = 200
_LARGEST_REQUEST = 4096  # bytes
_MOST_VERSIONS = 64
_MOST_STEPS = 10_000_000

Differences = dict[str, str]
"""In words, by input."""


def shown_state(query: Mapping[str, str], body: bytes = b"") -> tuple[Any, int]:
    """What the browser is told when it asks for a node's run, and the HTTP status.

    Args:
        query: ``node_id``; ``name`` and ``workflow`` of the node, if the browser knows them, which
            nodes of other workflows do not share; ``run``, the name and version that the node
            shows, and ``exact`` when it has to be that one.
        body: The graph as it would be queued, as ``prompt``; without it the last run is shown.

    Returns:
        The run, or with 404 a ``reason``, which is empty where there is nothing to say.
    """
    node_id, run, exact = query.get("node_id", ""), query.get("run", ""), query.get("exact")
    found = PANEL.snapshot(node_id)
    active = found.get("status") in ACTIVE
    mine = bool(found) and all(
        not query.get(name) or found[name] in {"", query[name]} for name in ("name", "workflow")
    )
    if exact:
        mine = active or found.get("run") == run
    prompt = (parse_object(body, LARGEST_PROMPT) or {}).get("prompt") if body else None
    if isinstance(prompt, Mapping) and mine and not exact:
        # Tabs of one template share their nodes' ids, and a name that is empty is the folder's.
        name = _name(query, prompt)
        mine = not name or found["name"] == name
    if isinstance(prompt, Mapping) and not exact and not (mine and active):
        return _of_settings(query, prompt, found if mine else {})
    if not mine:
        found = _on_disk(query, run)
    return found, 200 if found else 404


def _of_settings(
    query: Mapping[str, str], prompt: Mapping[str, Any], found: dict[str, Any]
) -> tuple[Any, int]:
    """The run that a graph asks for; what is known of the node's last one saves a look."""
    node_id, kept = query.get("node_id", ""), query.get("run", "")
    wanted, last = _asked(prompt, node_id), PANEL.asked(node_id)
    own = wanted[0].settings
    if found and not found["run"] and (last is None or not own.differences(last, finished=True)):
        return found, 200  # it has failed before it had a folder
    versions = _versions(_name(query, prompt), kept or found.get("run", ""))
    nearest = _nearest(versions, wanted, {kept, found.get("run", "")})
    if nearest is None:
        return {"reason": ""}, 404
    far, run, differences = nearest
    sentence = "; ".join(differences.values())
    if far > 1:
        return {"reason": f"These settings start a new run: {sentence}."}, 404
    if run != found.get("run"):
        found = _on_disk(query, run)
    notes = found.get("notes", [])
    if differences:
        notes += [f"Run starts a new run: {sentence}. Continue goes on with the seed of this one."]
    if node_of(prompt, node_id)[1].get("resume") is False:
        notes += ["resume is off: a Run that trains again starts a new run."]
    return found or {"reason": ""}, 200 if found else 404


def _nearest(
    versions: Iterator[tuple[str, Path, Ending]],
    forms: Sequence[Form],
    own: Collection[str],
) -> tuple[int, str, Differences] | None:
    """How far the settings are from a run, 0 where it is theirs and 1 where its seed is another.

    Of several that are as near, one of as many steps comes first: Run trains none of those again.
    """
    steps = forms[0].settings.steps
    nearest: tuple[int, str, Differences] | None = None
    least = (0, False)
    for run, folder, ending in versions:
        found = _differences(folder, ending, forms)
        if found is None and run not in own:
            continue  # it keeps no graph, and is not the node's own
        far = len(found) + (found.keys() != {SEED}) if found else 0
        rank = far, steps > 0 and steps not in {ending.steps, ending.asked}
        if nearest is None or rank < least:
            nearest, least = (far, run, found or {}), rank
        if not any(rank):
            break
    return nearest


def _name(query: Mapping[str, str], prompt: Mapping[str, Any]) -> str:
    """The run's name; nothing where it comes over a link."""
    from ..quick.plan import Answers

    _, inputs = node_of(prompt, query.get("node_id", ""))
    name, folder = query.get("name") or inputs.get("name"), inputs.get("folder", "")
    if not (isinstance(name, str) and isinstance(folder, str)):
        return ""
    return Answers(folder, "", "", "", name).run_name


def _versions(
    name: str, kept: str, *, also_running: bool = False
) -> Iterator[tuple[str, Path, Ending]]:
    """Versions of a name: the one that the node has shown, then the newest first."""
    first = [kept] if kept and name in {"", kept.split("/")[0]} else []
    runs = [each for each in comfy_host.run_names() if each.split("/")[0] == name]
    for run in dict.fromkeys([*first, *runs[:_MOST_VERSIONS]]):
        with contextlib.suppress(InputError):
            folder = comfy_host.run_path(run)
            # One that is trained elsewhere is shown there.
            if (ending := read_ending(folder)).status != "running" or also_running:
                yield run, folder, ending


class Expected(NamedTuple):
    """What a queued training will do: its name; steps, 0 unknown; how long, as far as known."""

    name: str
    steps: int
    seconds: float | None


def expected_training(
    prompt: Mapping[str, Any], node_id: str, continuation: Continuation
) -> Expected:
    """What a training will do that waits, by a former run of the same settings.

    `continuation` is what a button has promised of it.
    """
    forms, name = _asked(prompt, node_id), _name({"node_id": node_id}, prompt)
    steps = continuation.steps or forms[0].settings.steps
    if continuation.folder is not None:
        far, folder = 0, continuation.folder
        folder = folder if folder.name.startswith("v") else folder.parents[1]
    else:
        versions = _versions(name, "", also_running=True) if name else iter(())
        nearest = _nearest(versions, forms, ())
        if nearest is None or nearest[0] > 1:
            return Expected(name, steps, None)
        far, folder = nearest[0], comfy_host.output_folder() / nearest[1]
    last = last_steps(folder / METRICS)
    try:
        ending = read_ending(folder)
    except InputError:
        return Expected(name, steps, None)
    steps, goes_on = steps or ending.steps, node_of(prompt, node_id)[1].get("resume") is not False
    saved = saved_checkpoints(folder) if goes_on and far == 0 else []
    made = int(continuation.folder.name) if continuation.folder not in {None, folder} else 0
    made = made or (int(saved[-1].name) if saved else 0)
    if not last:
        return Expected(name, steps, None)
    seconds = sum(each[-1] for each in last) / len(last)
    return Expected(name, steps, max(0, steps - made) * seconds)


def _asked(prompt: Mapping[str, Any], node_id: str) -> list[Form]:
    forms = setting_forms(prompt, node_id)
    return [form._replace(settings=with_marks(form.settings)) for form in forms]


def _differences(folder: Path, ending: Ending, forms: Sequence[Form]) -> Differences | None:
    """How a run's settings differ from what is asked now, at its nearest; None: not comparable."""
    done, steps = ending.status in {"done", "stopped"}, forms[0].settings.steps
    ways: list[Differences] = []
    for before in kept_forms(folder):
        pairs = [
            (n.settings, b.settings) for n in forms for b in before if n.node_class == b.node_class
        ]
        found = [now.differences(each, finished=done) for now, each in pairs]
        # Other answers may choose the same settings; in words the answers are told.
        same = [each for each in found if each.keys() <= {SEED}]
        ways += same[:1] or found[:1]
    # It cannot become shorter than it is, unless it was made longer since it was asked for.
    if 0 < steps < ending.step and steps != ending.asked:
        shorter = {STEPS: f"steps is {steps}, and {ending.step} are trained"}
        ways = [way | shorter for way in ways]
    return min(ways, key=len, default=None)


def run_state(folder: Path, run: str, node_id: str = "", workflow: str = "") -> RunState:
    """A run as its version folder has it; `InputError` where its record is damaged."""
    ending = read_ending(folder)
    state = RunState(node_id, run, folder.parent.name, ending.steps, workflow)
    state.status = "training" if ending.status == "running" else ending.status
    prompts, state.seed = read_run_file(folder)
    state.take_history(folder, comfy_host.output_place, prompts)
    state.step, state.message = max(state.step, ending.step), ending.message
    state.resumable = bool(saved_checkpoints(folder))
    state.take_kept(kept_panel(folder))
    return state


def _on_disk(query: Mapping[str, str], run: str) -> dict[str, Any]:
    """A run that the server has forgotten, or never had; the names may come from anybody."""
    node_id = query.get("node_id", "")
    try:
        state = run_state(comfy_host.run_path(run), run, node_id, query.get("workflow", ""))
    except InputError:
        return {}
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
        return f"{error.found}. {error.remedy}" if known else str(error), False
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
        differences = _differences(folder, ending, _asked(prompt, node_id)) or {}
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
