"""What the browser shows of runs: the last state of each train node, and the buttons' requests.

Events may be lost (a page reload, a closed tab), so the state is kept here and can be asked for.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...trainer_core.training.observer import RunRequests

EVENTS_PER_SECOND = 5
_POINTS = 2000
_KEPT_STATES = 64
_REQUESTS = frozenset({"save", "preview", "stop"})
_LARGEST_REQUEST = 4096  # bytes
ACTIVE = frozenset({"caching", "loading", "training"})


@dataclass(slots=True)
class RunState:
    """One train node's last run, as the panel shows it.

    Attributes:
        points: Step, loss and learning rate; thinned when there are many.
        samples: Preview pictures with their step, prompt index and place.
    """

    node_id: str
    prompt_id: str
    name: str
    steps: int
    status: str = "loading"
    step: int = 0
    points: list[tuple[int, float, float]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    step_seconds: float = 0.0
    message: str = ""
    warnings: list[str] = field(default_factory=list)

    def address(self) -> dict[str, Any]:
        """What every event says of itself."""
        return {"node_id": self.node_id, "prompt_id": self.prompt_id, "name": self.name}

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON values."""
        return {
            **self.address(),
            **self.progress(self.points),
            "samples": list(self.samples),
            "warnings": list(self.warnings),
        }

    def progress(self, points: list[tuple[int, float, float]]) -> dict[str, Any]:
        """What changes with each step, as JSON values."""
        return {
            "status": self.status,
            "step": self.step,
            "steps": self.steps,
            "points": [list(point) for point in points],
            "step_seconds": self.step_seconds,
            "seconds_left": max(0.0, (self.steps - self.step) * self.step_seconds),
            "message": self.message,
        }

    def add_point(self, step: int, loss: float, rate: float) -> None:
        """Add a step; every second one of the old is dropped when there are too many."""
        self.points.append((step, loss, rate))
        if len(self.points) > 2 * _POINTS:
            self.points = self.points[::2]


class Panel:
    """The states of all train nodes; used by the prompt's thread and the server's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[str, RunState] = OrderedDict()
        self._requests: dict[str, set[str]] = {}

    def open(self, state: RunState) -> None:
        """Begin a node's run; what was shown of the last one is forgotten."""
        with self._lock:
            self._states.pop(state.node_id, None)
            self._states[state.node_id] = state
            self._requests[state.node_id] = set()
            while len(self._states) > _KEPT_STATES:
                oldest, _ = self._states.popitem(last=False)
                self._requests.pop(oldest, None)

    def snapshot(self, node_id: str) -> dict[str, Any] | None:
        """A node's state, or None when it has not run since the server started."""
        with self._lock:
            state = self._states.get(node_id)
            return None if state is None else state.snapshot()

    def request(self, node_id: str, asked: str) -> str:
        """Note a button's request for the run of a node.

        Args:
            node_id: The node.
            asked: ``save``, ``preview`` or ``stop``.

        Returns:
            Why it cannot be granted, or nothing.
        """
        with self._lock:
            state = self._states.get(node_id)
            if asked not in _REQUESTS:
                return f"unknown request {asked[:20]!r}"
            if state is None or state.status not in ACTIVE:
                return "this node is not training"
            self._requests[node_id].add(asked)
            return ""

    def take_requests(self, node_id: str) -> RunRequests:
        """The requests since the last call."""
        from ...trainer_core.training.observer import RunRequests

        with self._lock:
            asked = self._requests.get(node_id, set())
            taken = RunRequests(**{name: name in asked for name in sorted(_REQUESTS)})
            asked.clear()
            return taken

    def change(self, change: Callable[[], None]) -> None:
        """Change a state while nobody reads it."""
        with self._lock:
            change()


class Throttle:
    """Lets at most so many events a second pass.

    Args:
        per_second: How many.
    """

    def __init__(self, per_second: float) -> None:
        self._pause = 1.0 / per_second
        self._next = 0.0

    def passes(self) -> bool:
        """Whether an event may be sent now."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._pause
        return True


PANEL = Panel()


def add_routes(table: Any) -> None:
    """Add the panel's routes to the server's.

    Args:
        table: An aiohttp route table.
    """
    from aiohttp import web

    @table.get("/adapter_trainer/state")
    async def state(request: web.Request) -> web.Response:
        found = PANEL.snapshot(request.query.get("node_id", ""))
        return web.json_response(found or {}, status=200 if found else 404)

    @table.post("/adapter_trainer/wish")
    async def act(request: web.Request) -> web.Response:
        from ...trainer_core.filesystem.text_files import parse_json

        body = await request.read()
        try:
            asked = parse_json(body) if len(body) <= _LARGEST_REQUEST else None
        except ValueError:
            asked = None
        if not isinstance(asked, Mapping):
            return web.json_response({"taken": False, "reason": "not a JSON object"}, status=400)
        node_id, name = str(asked.get("node_id", "")), str(asked.get("wish", ""))
        reason = PANEL.request(node_id, name)
        answer = {"taken": not reason, **({"reason": reason} if reason else {})}
        return web.json_response(answer, status=409 if reason else 200)
