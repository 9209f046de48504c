"""Which run on the disk a node's settings mean: the nearest version of its name, if there is one.

A run belongs to its settings. Of all versions of a name the one is meant that was asked for the
same; where there is none, these settings start a new run, and that is what is said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....trainer_core.errors import InputError
from ....trainer_core.training.checkpoints.run_names import METRICS
from ...host import comfy_host
from ...host.folders import saved_checkpoints
from ..datasets.content_marks import with_marks
from ..rerun_stamps import Continuation
from .history import Ending, last_steps, read_ending, read_run_file
from .prompt_settings import SEED, STEPS, Form, kept_forms, kept_panel, node_of, setting_forms
from .run_states import RunState

_MOST_VERSIONS = 64

Differences = dict[str, str]
"""In words, by input."""


def nearest_run(
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
        found = differences_from(folder, ending, forms)
        if found is None and run not in own:
            continue  # it keeps no graph, and is not the node's own
        far = len(found) + (found.keys() != {SEED}) if found else 0
        rank = far, steps > 0 and steps not in {ending.steps, ending.asked}
        if nearest is None or rank < least:
            nearest, least = (far, run, found or {}), rank
        if not any(rank):
            break
    return nearest


def run_name(query: Mapping[str, str], prompt: Mapping[str, Any]) -> str:
    """The run's name; nothing where it comes over a link."""
    from ..quick.plan import Answers

    _, inputs = node_of(prompt, query.get("node_id", ""))
    name, folder = query.get("name") or inputs.get("name"), inputs.get("folder", "")
    if not (isinstance(name, str) and isinstance(folder, str)):
        return ""
    return Answers(folder, "", "", quality="", name=name).run_name


def versions_of(
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
    forms, name = marked_forms(prompt, node_id), run_name({"node_id": node_id}, prompt)
    steps = continuation.steps or forms[0].settings.steps
    if continuation.folder is not None:
        far, folder = 0, continuation.folder
        folder = folder if folder.name.startswith("v") else folder.parents[1]
    else:
        versions = versions_of(name, "", also_running=True) if name else iter(())
        nearest = nearest_run(versions, forms, ())
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


def marked_forms(prompt: Mapping[str, Any], node_id: str) -> list[Form]:
    """What a training node asks for, with the marks of its images."""
    forms = setting_forms(prompt, node_id)
    return [form._replace(settings=with_marks(form.settings)) for form in forms]


def differences_from(folder: Path, ending: Ending, forms: Sequence[Form]) -> Differences | None:
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
    state = RunState(node_id, run, folder.parent.name, steps=ending.steps, workflow=workflow)
    state.status = "training" if ending.status == "running" else ending.status
    prompts, state.seed = read_run_file(folder)
    state.take_history(folder, comfy_host.output_place, prompts)
    state.step, state.message = max(state.step, ending.step), ending.message
    state.resumable = bool(saved_checkpoints(folder))
    state.take_kept(kept_panel(folder))
    return state
