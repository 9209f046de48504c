"""What ComfyUI's queue holds of our trainings, and how long they take as far as that is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...host import comfy_host
from ..panel.matching_runs import Expected, expected_training
from ..panel.prompt_settings import TRAINING, node_of
from ..panel.run_states import PANEL
from ..rerun_stamps import CONTINUED

_TRAINS = TRAINING | {"AdapterTrainerSweep"}
"""The nodes whose prompts train; a sweep is none that a run could go on at."""

_expected: dict[str, dict[str, Expected]] = {}
"""Of what waits, by prompt and node: it is found once, from files."""


def queued_trainings() -> list[dict[str, Any]]:
    """A row for each prompt that runs or waits, in their order.

    ``prompt_id``; whether it ``runs``; its ``trainings``, none of one that only generates:
    ``name``, ``steps`` (0 unknown) and ``seconds`` that it still takes (None unknown).
    """
    queued = comfy_host.queued_prompts()
    for gone in _expected.keys() - {each.prompt_id for each in queued}:
        _expected.pop(gone, None)
    return [
        {"prompt_id": each.prompt_id, "runs": each.runs, "trainings": _trainings(each)}
        for each in queued
    ]


def _trainings(queued: comfy_host.QueuedPrompt) -> list[dict[str, Any]]:
    known = _expected.setdefault(queued.prompt_id, {})
    shown = PANEL.of_prompt(queued.prompt_id) if queued.runs else {}
    rows: list[dict[str, Any]] = []
    for node_id in sorted(_needed(queued.prompt, queued.outputs)):
        if node_of(queued.prompt, node_id)[0] not in _TRAINS:
            continue
        if node_id not in known:
            continuation = CONTINUED.promised(node_id, queued.extra)
            known[node_id] = expected_training(queued.prompt, node_id, continuation)
        before = known[node_id]
        name, steps, seconds = shown.get(node_id, before)
        # Before its first step a run is as long as it was expected to be.
        seconds = before.seconds if seconds is None else seconds
        rows.append({"name": name, "steps": steps or before.steps, "seconds": seconds})
    return rows


def _needed(prompt: Mapping[str, Any], outputs: Iterable[str]) -> set[str]:
    """The nodes that some nodes need, and these."""
    found: set[str] = set()
    waiting = [*outputs]
    while waiting:
        node_id = waiting.pop()
        if node_id not in found:
            found.add(node_id)
            links = node_of(prompt, node_id)[1].values()
            waiting += [str(each[0]) for each in links if isinstance(each, list) and each]
    return found
