"""Shows a run on its node and carries the user's cancel and the panel's buttons to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...trainer_core.training.observer import (
    CacheProgress,
    CheckpointSaved,
    Event,
    PreviewDone,
    RunFinished,
    RunRequests,
    RunStarted,
    StepDone,
    Warned,
)
from ...trainer_core.training.recorder import TENSORBOARD_ABSENT
from ..host import comfy_host
from .panel import EVENTS_PER_SECOND, PANEL, RunState, Throttle

_SMOOTH = 0.9


class NodeObserver:
    """Observer of one node's work.

    Args:
        node_id: The node.
        name: The run's name.
        trains: Whether it trains; a node that only encodes has no panel.
    """

    def __init__(self, node_id: str, name: str, *, trains: bool) -> None:
        # How many steps there are is known when the images are counted.
        self.state = RunState(node_id, comfy_host.current_prompt(), name, 0)
        self._trains = trains
        self._folder: Path | None = None
        self._bar: comfy_host.ProgressBar | None = None
        self._throttle = Throttle(EVENTS_PER_SECOND)
        self._unsent: list[tuple[int, float, float]] = []
        # Whether the browser lacks more than the unsent points.
        self._behind = False
        self._cancel = False
        if self._trains:
            PANEL.open(self.state)
            self._send_state()

    def notify(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, StepDone):
            self._step(event)
        elif isinstance(event, CacheProgress):
            self._encoded(event)
        elif isinstance(event, RunStarted):
            self._bar = comfy_host.ProgressBar(self.state.node_id, event.summary.steps)
            self._folder = event.summary.folder
            PANEL.change(lambda: setattr(self.state, "steps", event.summary.steps))
            self._set(
                "training",
                f"{event.summary.layers} layers, {event.summary.parameters:,} "
                f"parameters on {event.summary.device} in {event.summary.precision}",
            )
        elif isinstance(event, PreviewDone):
            self._preview(event)
        elif isinstance(event, CheckpointSaved):
            self._say(f"checkpoint of step {event.step} saved")
        elif isinstance(event, Warned) and event.message != TENSORBOARD_ABSENT:
            # The panel shows what TensorBoard would.
            self.warn(event.message)
        elif isinstance(event, RunFinished):
            result = event.result
            early = result.status == "done" and result.step < self.state.steps
            self._set("stopped" if early else result.status, f"step {result.step}")

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run that has started can go on from the disk."""
        return self._folder is not None and any(self._folder.glob("checkpoints/[0-9]*"))

    def warn(self, message: str) -> None:
        """Show something that the user should know."""
        comfy_host.logger.warning("%s: %s", self.state.name, message)
        PANEL.change(lambda: self.state.warnings.append(message))
        self._refresh()

    def failed(self, message: str) -> None:
        """Show that the run has failed."""
        if self._trains:
            self._set("failed", message)

    def cancelled(self) -> bool:
        """Whether the user has cancelled the prompt since the work began."""
        return self._cancel or comfy_host.interrupted()

    def requests(self) -> RunRequests:
        """What the user asked for since the last step."""
        asked = PANEL.take_requests(self.state.node_id) if self._trains else RunRequests()
        return asked._replace(cancel=True) if self.cancelled() else asked

    def _step(self, event: StepDone) -> None:
        result, state = event.result, self.state
        seconds = state.step_seconds
        smooth = _SMOOTH * seconds + (1 - _SMOOTH) * result.step_seconds
        point = (result.step, result.loss, result.learning_rate)

        def change() -> None:
            state.step, state.steps = result.step, event.steps
            state.step_seconds = smooth if seconds else result.step_seconds
            state.add_point(*point)

        PANEL.change(change)
        self._unsent.append(point)
        # What does not pass goes with what follows; the end of the run sends everything.
        if not self._throttle.passes():
            return
        if self._bar is not None and self._bar.show(result.step):
            self._cancel = True
        left = _duration((event.steps - result.step) * state.step_seconds)
        comfy_host.show_text(
            state.node_id,
            f"step {result.step}/{event.steps}, loss {result.loss:.4f}, "
            f"{state.step_seconds:.2f} s/step, {left} left",
        )
        if self._behind:
            self._send_state()
            return
        self._send("progress", state.progress(self._unsent))
        self._unsent = []

    def _encoded(self, event: CacheProgress) -> None:
        if self._bar is None:
            self._bar = comfy_host.ProgressBar(self.state.node_id, event.total)
        if self._bar.show(event.done) or comfy_host.interrupted():
            # What is encoded is on disk already: the next run goes on there.
            comfy_host.raise_interrupted()
        if self._throttle.passes() or event.done == event.total:
            text = f"encoded {event.done}/{event.total} pictures and captions"
            comfy_host.show_text(self.state.node_id, text)
            PANEL.change(lambda: setattr(self.state, "message", text))
            self._send("progress", self.state.progress([]))

    def _preview(self, event: PreviewDone) -> None:
        from PIL import Image

        place = comfy_host.output_place(event.path)
        sample = {"step": event.step, "index": event.prompt_index, **place}
        PANEL.change(lambda: self.state.samples.append(sample))
        if not self._throttle.passes():
            self._behind = True
            return
        if self._behind:
            self._send_state()
        else:
            self._send("sample", sample)
        with Image.open(event.path) as picture:
            picture.load()
        if self._bar is not None and self._bar.show(self.state.step, picture):
            self._cancel = True

    def _say(self, message: str) -> None:
        """Change the line beside the status; may be done more often than events are sent."""
        PANEL.change(lambda: setattr(self.state, "message", message))
        if self._refresh():
            comfy_host.show_text(self.state.node_id, message)

    def _refresh(self) -> bool:
        """Send the whole state, now or with the next event that passes; says whether now."""
        self._behind = True
        passes = self._trains and self._throttle.passes()
        if passes:
            self._send_state()
        return passes

    def _set(self, status: str, message: str) -> None:
        """Change the status, which happens a few times in a run and is sent at once."""

        def change() -> None:
            self.state.status, self.state.message = status, message

        PANEL.change(change)
        if self._trains:
            self._send_state()
        comfy_host.show_text(self.state.node_id, message)

    def _send_state(self) -> None:
        self._unsent, self._behind = [], False
        comfy_host.send("adapter_trainer.state", self.state.snapshot())

    def _send(self, event: str, values: dict[str, Any]) -> None:
        if self._trains:
            comfy_host.send(f"adapter_trainer.{event}", {**self.state.address(), **values})


def _duration(seconds: float) -> str:
    # strftime asks the system for its time zone, which costs more than all the rest of an event.
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
