"""`NodeObserver`: shows a run on its node and in the panel, and notices a cancelled prompt."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import InputError, StorageError
from ....trainer_core.filesystem.storage import write_json
from ....trainer_core.training.observer import (
    TENSORBOARD_ABSENT,
    Advised,
    CacheProgress,
    CheckpointRestored,
    CheckpointSaved,
    Event,
    MemoryPlanned,
    Noted,
    PreviewDone,
    RunFinished,
    RunRequests,
    RunStarted,
    StepDone,
    ValidationDone,
    Warned,
)
from ...host import comfy_host
from ...host.folders import saved_checkpoints
from ..rerun_stamps import CONTINUED, Continuation
from .history import Ending, HeldOut, sample_of
from .prompt_settings import KEPT, graph_settings, words_of
from .run_states import ACTIVE, PANEL, RunState

if TYPE_CHECKING:
    from ..loras_folder import LoraKeeper

_EVENTS_PER_SECOND = 5
_SMOOTH = 0.9


class _Throttle:
    """Lets at most `_EVENTS_PER_SECOND` pass."""

    def __init__(self) -> None:
        self._next = 0.0

    def passes(self) -> bool:
        """Whether an event may be sent now."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + 1.0 / _EVENTS_PER_SECOND
        return True


def _workflow_id(queued: Mapping[str, object]) -> str:
    """What the page knows the workflow by; nothing without a page."""
    workflow = queued.get("workflow")
    return str(workflow.get("id") or "") if isinstance(workflow, Mapping) else ""


class NodeObserver:
    """Observer of one node's work.

    A node that only encodes does not train, and has a line of text instead of a panel.
    """

    def __init__(
        self,
        node_id: str,
        name: str,
        *,
        trains: bool,
        steps: int = 0,
        choices: Sequence[Mapping[str, str]] = (),
        queued: Mapping[str, object] | None = None,
    ) -> None:
        # Where nobody says how many steps there are, it is known when the images are counted.
        workflow, prompt = _workflow_id(queued or {}), (queued or {}).get("prompt")
        # What the panel has promised of this run.
        self.continuation = (
            CONTINUED.take(node_id, comfy_host.running().get("extra_data"))
            if trains
            else Continuation()
        )
        steps = self.continuation.steps or steps
        self.state = RunState(
            node_id, comfy_host.current_prompt(), name, steps=steps, workflow=workflow
        )
        if isinstance(prompt, Mapping):
            self.state.asked = graph_settings(prompt, node_id)
            self.state.words = words_of(prompt, node_id)
        self.state.choices = [dict(choice) for choice in choices]
        self._prompts: Sequence[str] = ()
        self._trains = trains
        self._what = ""
        self._folder: Path | None = None
        self.keeper: LoraKeeper | None = None
        # Of the images that are trained, by their folder.
        self.marks: Mapping[str, str] = {}
        self._bar: comfy_host.ProgressBar | None = None
        self._throttle = _Throttle()
        self._unsent: list[tuple[int, float, float]] = []
        self._unsent_held: list[HeldOut] = []
        # Whether the browser lacks more than the unsent points.
        self._behind = False
        self._cancel = False
        if self._trains:
            PANEL.open(self.state)
            self._send_status()

    def notify(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, StepDone):
            self._step(event)
        elif isinstance(event, CacheProgress):
            self._encoded(event)
        elif isinstance(event, MemoryPlanned):
            with PANEL.lock:
                self.state.memory = asdict(event)
            self._refresh()
        elif isinstance(event, RunStarted):
            self._bar = comfy_host.ProgressBar(self.state.node_id, event.summary.steps)
            self._folder = event.summary.folder
            with PANEL.lock:
                self.state.steps = event.summary.steps
                self.state.layers = list(event.summary.adapted)
                self.state.take_history(self._folder, comfy_host.output_place, self._prompts)
                self.state.resumable = self.has_checkpoint
            self._keep()
            self._set(
                "training",
                f"{event.summary.layers} layers, {event.summary.parameters:,} "
                f"parameters on {event.summary.device} in {event.summary.precision}",
            )
        elif isinstance(event, ValidationDone):
            self._measured(event)
        elif isinstance(event, PreviewDone):
            self._preview(event)
        elif isinstance(event, CheckpointSaved):
            self._saved(event)
        elif isinstance(event, Warned):
            self._said(event)
        elif isinstance(event, RunFinished):
            result, steps = event.result, self.state.steps
            early = result.status == "done" and result.step < steps
            best = result.best.step if result.best else None
            ending = Ending("stopped" if early else result.status, result.step, steps, best)
            self._set(ending.status, f"{result.stopped_early} {ending.message}".strip())

    def describe(self, prompts: Sequence[str], seed: int) -> None:
        """Take what the run file says of the preview images, and the seed."""
        self._prompts, self.state.seed = prompts, seed

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run that has started can go on from the disk."""
        return self._folder is not None and bool(saved_checkpoints(self._folder))

    def warn(self, message: str) -> None:
        """Show something that the user should know."""
        comfy_host.logger.warning("%s: %s", self.state.name, self.state.words(message))
        with PANEL.lock:
            self.state.warnings.append(message)
        self._refresh()

    def note(self, message: str, instead_of: str = "") -> None:
        """Show something that is good to know, in place of an earlier note where one is named."""
        comfy_host.logger.info("%s: %s", self.state.name, self.state.words(message))
        with PANEL.lock:
            notes = [each for each in self.state.notes if each != instead_of]
            self.state.notes = [*notes, message]
        self._refresh()

    def failed(self, message: str) -> None:
        """Show that the run has failed."""
        if self._trains:
            self._set("failed", message)

    def ended(self) -> None:
        """Show that the run has failed, unless that is known already."""
        if self.state.status in ACTIVE:
            self.failed("")

    def interrupted(self) -> None:
        """Show that the user has cancelled before the run could end by itself."""
        if self._trains and self.state.status in ACTIVE:
            self._set("cancelled", Ending("cancelled", 0, 0).message)

    def cancelled(self) -> bool:
        """Whether the user has cancelled the prompt since the work began."""
        return self._cancel or comfy_host.interrupted()

    def requests(self) -> RunRequests:
        """What the user asked for since the last step."""
        actions = PANEL.take_requests(self.state.node_id) if self._trains else RunRequests()
        return actions._replace(cancel=True) if self.cancelled() else actions

    def _step(self, event: StepDone) -> None:
        result, state = event.result, self.state
        before = state.step_seconds or result.step_seconds
        point = (result.step, result.loss, result.learning_rate)
        with PANEL.lock:
            state.step, state.steps = result.step, event.steps
            state.step_seconds = _SMOOTH * before + (1 - _SMOOTH) * result.step_seconds
            if not result.skipped:
                state.add_point(point)
        if not result.skipped:
            self._unsent.append(point)
        # What does not pass goes with what follows; the end of the run sends everything.
        if not self._throttle.passes():
            return
        if self._bar is not None and self._bar.show(result.step):
            self._cancel = True
        if self._behind:
            self._send_state()
        else:
            self._send("progress", state.progress(self._unsent, self._unsent_held))
            self._unsent, self._unsent_held = [], []

    def _measured(self, event: ValidationDone) -> None:
        when = f"at step {event.step}" if event.step else "before training"
        beside = "" if event.trained is None else f", on trained ones {event.trained:.4f}"
        measured = (event.step, event.loss, event.trained)
        with PANEL.lock:
            self.state.message = f"Loss on held-out images {when}: {event.loss:.4f}{beside}"
            self.state.add_held_out(measured)
        self._unsent_held.append(measured)

    def _said(self, event: Warned) -> None:
        if event.message == TENSORBOARD_ABSENT:
            return  # the panel shows what it would
        if isinstance(event, Advised):
            message = self.state.words(event.message)
            comfy_host.logger.warning("%s: %s", self.state.name, message)
            with PANEL.lock:
                self.state.advice.append(asdict(event))
            self._refresh()
            return
        if isinstance(event, CheckpointRestored):
            with PANEL.lock:
                self.state.go_back(event.to)
            # Points of steps that are given up must not follow.
            self._unsent, self._unsent_held = [], []
        (self.note if isinstance(event, Noted) else self.warn)(event.message)

    def _saved(self, event: CheckpointSaved) -> None:
        dropped = _dropped(event.dropped)
        with PANEL.lock:
            self.state.message = f"checkpoint of step {event.step} saved{dropped}"
            self.state.resumable = True
        self._refresh()
        if self.keeper is not None:
            self.keeper.keep(event, self)

    def _encoded(self, event: CacheProgress) -> None:
        if self._bar is None or event.what != self._what:
            # A bar of its own for each kind of work: together they would say nothing of either.
            self._what = event.what
            self._bar = comfy_host.ProgressBar(self.state.node_id, event.total)
        if self._bar.show(event.done) or comfy_host.interrupted():
            # What is encoded is on disk already: the next run goes on there.
            comfy_host.raise_interrupted()
        if self._throttle.passes() or event.done == event.total:
            text = f"{event.done}/{event.total} {event.what}"
            if not self._trains:
                comfy_host.show_text(self.state.node_id, f"encoded {text}")
            with PANEL.lock:
                self.state.status, self.state.message = "caching", text
                self.state.encoded = [event.done, event.total]
            self._send("progress", self.state.progress([]))

    def _preview(self, event: PreviewDone) -> None:
        place = comfy_host.output_place(event.path)
        sample = sample_of(event.step, event.prompt_index, self._prompts, place)
        with PANEL.lock:
            self.state.samples.append(sample)
        if not self._throttle.passes():
            self._behind = True
            return
        if self._behind:
            self._send_state()
        else:
            self._send("sample", sample)
        if self._bar is not None and self._bar.show(self.state.step):
            self._cancel = True

    def _refresh(self) -> None:
        """Send the whole state, now or with the next event that passes."""
        self._behind = True
        if self._trains and self._throttle.passes():
            self._send_state()

    def _set(self, status: str, message: str) -> None:
        """Change the status, which happens a few times in a run and is sent at once."""
        with PANEL.lock:
            self.state.status, self.state.message = status, message
        if status not in ACTIVE:
            self._keep()
        self._send_status()

    def _keep(self) -> None:
        """Keep beside the run what only the panel knows."""
        from ..datasets.content_marks import folders_of

        if self._folder is None or self.state.asked is None:
            return
        images: dict[str, str] = {}
        for _, name in folders_of(self.state.asked):
            with contextlib.suppress(InputError):
                images[name] = self.marks.get(str(comfy_host.dataset_path(name)), "")
        with contextlib.suppress(StorageError):
            write_json(self._folder / KEPT, {"images": images, **self.state.kept()})

    def _send_status(self) -> None:
        """Send the whole state to the page that has queued the prompt; other pages ask for it."""
        self._send_state()
        changed = {**self.state.address(), "status": self.state.status}
        comfy_host.send_to_all("adapter_trainer.changed", changed)

    def _send_state(self) -> None:
        self._unsent, self._unsent_held, self._behind = [], [], False
        comfy_host.send("adapter_trainer.state", self.state.snapshot())

    def _send(self, event: str, values: dict[str, Any]) -> None:
        if self._trains:
            comfy_host.send(f"adapter_trainer.{event}", {**self.state.address(), **values})


def _dropped(steps: Sequence[int]) -> str:
    which = ", ".join(map(str, steps))
    return f"; that of step {which} is removed, as keep_checkpoints says" if steps else ""
