"""What the panel shows of each train node's last run, and which of its buttons were pressed.

Events may be lost (a page reload, a closed tab), so the state is kept here and can be asked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ....trainer_core.training.observer import RunRequests
from ..graph_words import in_graph_words
from .history import POINTS, HeldOut, Place, read_history, thinned_losses
from .prompt_settings import GraphSettings

_KEPT_STATES = 64
_REQUESTS = frozenset({"save", "preview", "stop"})
ACTIVE = frozenset({"caching", "loading", "training"})
"""What a run is while something is computed for it."""

_KEPT = {"choices": list, "warnings": list, "notes": list, "memory": dict, "layers": list}


@dataclass(slots=True)
class RunState:
    """One train node's last run, as the panel shows it.

    Attributes:
        workflow: The id of the workflow that it was started from; empty where it is not known.
        run: Its name and version, such as ``my_adapter/v0``; empty as long as it has no folder.
        seed: What decides which run it is; None where it is not known.
        resumable: Whether there is a checkpoint that it can go on from.
        points: Step, loss and learning rate; thinned when there are many.
        held_out: The losses on held-out and trained images; thinned, too.
        samples: Preview images with their step, prompt and its index, and place.
        error: What was found, expected and is to do, when it failed with an error of ours.
        warnings: What the person can do something about.
        notes: What is good to know.
        advice: Faults that have a remedy, as `Advised` has them, as JSON values.
        memory: Where the run keeps what, as JSON values; None as long as nothing was planned.
        layers: Each kind of layer with an adapter, a line each; empty before it is attached.
        choices: What a preset chose and why: ``setting``, ``value`` and ``why`` of each.
        returns: How often it has gone back to an older state; what is shown of another course is
            none of this one's.
        encoded: How many images and captions of how many are encoded; empty before.
        asked: The settings that it was asked for; None where they are not known.
        words: Says a message in the words of the graph that shows it.
    """

    node_id: str
    prompt_id: str
    name: str
    steps: int
    workflow: str = ""
    run: str = ""
    seed: int | None = None
    resumable: bool = False
    status: str = "loading"
    step: int = 0
    points: list[tuple[int, float, float]] = field(default_factory=list)
    held_out: list[HeldOut] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    step_seconds: float = 0.0
    message: str = ""
    error: dict[str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    advice: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] | None = None
    layers: list[str] = field(default_factory=list)
    choices: list[dict[str, str]] = field(default_factory=list)
    returns: int = 0
    encoded: list[int] = field(default_factory=list)
    asked: GraphSettings | None = None
    words: Callable[[str], str] = in_graph_words

    def address(self) -> dict[str, Any]:
        """What every event says of itself."""
        return {
            "node_id": self.node_id,
            "prompt_id": self.prompt_id,
            "name": self.name,
            "workflow": self.workflow,
            "run": self.run,
        }

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON values."""
        return {
            **self.address(),
            **self.progress(self.points, self.held_out),
            "seed": self.seed,
            "resumable": self.resumable,
            "samples": list(self.samples),
            # A kept file may come from anybody.
            "warnings": [self.words(each) for each in self.warnings if isinstance(each, str)],
            "notes": [self.words(each) for each in self.notes if isinstance(each, str)],
            "advice": [{**each, "message": self.words(each["message"])} for each in self.advice],
            "error": self.error,
            "memory": self.memory,
            "layers": list(self.layers),
            "choices": list(self.choices),
        }

    def seconds_left(self) -> float | None:
        """How long it still trains; None as long as no step says so."""
        if self.status in {"caching", "loading"} or (self.status == "training" and not self.step):
            return None
        steps = self.steps - self.step if self.status == "training" else 0
        return max(0.0, steps * self.step_seconds)

    def progress(
        self, points: list[tuple[int, float, float]], held_out: list[HeldOut] | None = None
    ) -> dict[str, Any]:
        """What changes with each step, as JSON values."""
        return {
            "status": self.status,
            "step": self.step,
            "steps": self.steps,
            "points": [list(point) for point in points],
            "held_out": [list(each) for each in held_out or []],
            "step_seconds": self.step_seconds,
            "seconds_left": max(0.0, (self.steps - self.step) * self.step_seconds),
            "message": self.words(self.message),
            "encoded": list(self.encoded),
            "returns": self.returns,
        }

    def take_history(self, folder: Path, place: Place, prompts: Sequence[str]) -> None:
        """Take over what a version folder holds of the run's steps until now; as `read_history`."""
        history = read_history(folder, place, prompts)
        self.run = f"{folder.parent.name}/{folder.name}"
        self.points, self.samples = history.points, history.samples
        self.held_out, self.advice = history.held_out, history.advice
        self.step, self.step_seconds = history.step, history.step_seconds

    def kept(self) -> dict[str, Any]:
        """What of it the run's folder keeps, because nothing else there has it, as JSON values."""
        return {name: getattr(self, name) for name in _KEPT}

    def take_kept(self, kept: Mapping[str, Any]) -> None:
        """Take over what `kept` gave once; the file may come from anybody."""
        for name, kind in _KEPT.items():
            if isinstance(value := kept.get(name), kind):
                setattr(self, name, value)

    def go_back(self, step: int) -> None:
        """Forget the steps behind one, which are made again."""
        self.returns += 1
        self.step = step
        self.points = [each for each in self.points if each[0] <= step]
        self.held_out = [each for each in self.held_out if each[0] <= step]
        self.samples = [each for each in self.samples if each["step"] <= step]

    def add_point(self, point: tuple[int, float, float]) -> None:
        """Add a step; every second one of the old is dropped when there are too many."""
        self.points.append(point)
        if len(self.points) > 2 * POINTS:
            self.points = self.points[::2]

    def add_held_out(self, measured: HeldOut) -> None:
        """Add a measurement; too many are thinned, and the lowest stays."""
        self.held_out = thinned_losses([*self.held_out, measured])


class Refusal(NamedTuple):
    """Why a node began no run.

    Attributes:
        workflow: As of `RunState`.
        inputs: Of the node.
        settings: What it was asked for.
        error: In the words of the graph.
    """

    workflow: str
    inputs: Mapping[str, Any]
    settings: GraphSettings
    error: Mapping[str, str]

    def is_of(self, workflow: str, inputs: Mapping[str, Any], wanted: GraphSettings) -> bool:
        """Whether a graph is still the one that was refused."""
        same = inputs == self.inputs and workflow in {"", self.workflow}
        return same and not wanted.differences(self.settings, finished=True)


class Panel:
    """The states of all train nodes; used by the prompt's thread and the server's.

    Attributes:
        lock: Held while a state is read or changed.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._states: OrderedDict[str, RunState] = OrderedDict()
        self._requests: dict[str, set[str]] = {}
        self._refusals: OrderedDict[str, Refusal] = OrderedDict()

    def open(self, state: RunState) -> None:
        """Begin a node's run; what was shown of the last one is forgotten."""
        with self.lock:
            self._open(state)

    def show_again(self, state: RunState) -> None:
        """Show a run that is read from the disk, unless the node trains by now."""
        with self.lock:
            present = self._states.get(state.node_id)
            if present is None or present.status not in ACTIVE:
                self._open(state)

    def _open(self, state: RunState) -> None:
        self._states.pop(state.node_id, None)
        self._refusals.pop(state.node_id, None)
        self._states[state.node_id] = state
        self._requests[state.node_id] = set()
        # A run that trains is kept: its buttons have to reach it.
        old = [node for node, each in self._states.items() if each.status not in ACTIVE]
        for node in old[: max(0, len(self._states) - _KEPT_STATES)]:
            del self._states[node], self._requests[node]

    def snapshot(self, node_id: str) -> dict[str, Any]:
        """A node's state; empty when it has not run since the server started."""
        with self.lock:
            state = self._states.get(node_id)
            return {} if state is None else state.snapshot()

    def live(self, run: str) -> dict[str, Any]:
        """The state of the node that trains a run now; empty where none does."""
        with self.lock:
            states = [each for each in self._states.values() if each.status in ACTIVE]
            return next((each.snapshot() for each in states if each.run == run), {})

    def of_prompt(self, prompt_id: str) -> dict[str, tuple[str, int, float | None]]:
        """Name, steps and seconds left of each training of a prompt, by its node."""
        with self.lock:
            states = [each for each in self._states.values() if each.prompt_id == prompt_id]
            return {each.node_id: (each.name, each.steps, each.seconds_left()) for each in states}

    def explain(self, node_id: str, prompt_id: str, error: dict[str, str]) -> bool:
        """Show why a node's run has failed; says whether the node has such a run to show it on."""
        from ...host import comfy_host

        with self.lock:
            state = self._states.get(node_id)
            if state is None or state.prompt_id != prompt_id or state.status != "failed":
                return False
            state.error = error
            shown, changed = state.snapshot(), {**state.address(), "status": state.status}
        comfy_host.send("adapter_trainer.state", shown)
        comfy_host.send_to_all("adapter_trainer.changed", changed)
        return True

    def refuse(self, node_id: str, refusal: Refusal) -> None:
        """Remember why a node did not begin a run, which has no state to show it on."""
        with self.lock:
            self._refusals.pop(node_id, None)
            self._refusals[node_id] = refusal
            while len(self._refusals) > _KEPT_STATES:
                self._refusals.popitem(last=False)

    def refusal(self, node_id: str) -> Refusal | None:
        """Why a node began no run since its last one; None where it did."""
        with self.lock:
            return self._refusals.get(node_id)

    def asked(self, node_id: str) -> GraphSettings | None:
        """What a node's last run was asked for, where that is known."""
        with self.lock:
            state = self._states.get(node_id)
            return None if state is None else state.asked

    def request(self, node_id: str, action: str) -> str:
        """Note that ``save``, ``preview`` or ``stop`` was pressed; says why not, or nothing."""
        with self.lock:
            state = self._states.get(node_id)
            if action not in _REQUESTS:
                return f"unknown request {action[:20]!r}"
            if state is None or state.status not in ACTIVE:
                return "this node is not training"
            self._requests[node_id].add(action)
            return ""

    def take_requests(self, node_id: str) -> RunRequests:
        """The requests since the last call."""
        with self.lock:
            actions = self._requests.get(node_id, set())
            taken = RunRequests(**{name: name in actions for name in sorted(_REQUESTS)})
            actions.clear()
            return taken


PANEL = Panel()
