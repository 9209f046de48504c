"""Which settings a resumed run may change, and how it says what has changed."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...config import RunConfig
from ...config.defaults import run_length
from ...config.folders import folder_without_places
from ...config.run import flattened, when_resumed
from ...errors import ConfigError
from .base_adapter_marks import Mark, are_same, in_words
from .checkpoint import Checkpoint
from .longer_run import SCHEDULE

MAY_CHANGE = (
    "optimizer, the text encoder's learning rate, schedule, loss, stratified noise, clipping, "
    "limit and averages of the weights, precision, steps, early stop, recovery, previews, "
    "checkpoints, metrics, how the loss on held-out images is measured, memory and output"
)
"""What `when_resumed` calls ``course`` and ``around``, in words."""

START = "adapter.start_from (content)"
"""Where a checkpoint's settings keep the identity of the file that the adapter started from."""

FORMAT = "memory.base_format"
"""Where a checkpoint's settings keep how the base was, which nobody may have set."""

ADAPTERS = "base.adapters (content)"

_FOLDERS = "dataset.folders"
_BASE = "base (content)"
_DATASET = "dataset (content)"
_SOURCE = "dataset (source)"
_CONTENTS = {
    _DATASET: "the images, their captions or their sizes are others now",
    _BASE: "the files of the base are others now",
    START: "the file of adapter.start_from is another now",
}
"""What is said in place of two digests, which tell a person nothing."""
_DIGEST = 64
CONTENTS = frozenset({_BASE, _DATASET, _SOURCE})
"""What is known of a run only when its base is found and its dataset is encoded."""
_LONGEST_VALUE = 80


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that is another than when the checkpoint was made.

    Attributes:
        setting: Its YAML path.
        before: What the checkpoint was made with.
        after: What the run goes on with.
    """

    setting: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.setting == ADAPTERS:
            before, after = in_words(self.before), in_words(self.after)
            if before == after:
                return f"base.adapters has other content now in {after}"
            return f"base.adapters was {before} and is {after}"
        if self.setting in _CONTENTS and all(map(_is_digest, (self.before, self.after))):
            return _CONTENTS[self.setting]
        return f"{self.setting} was {_shown(self.before)} and is {_shown(self.after)}"

    @property
    def of_course(self) -> bool:
        """Whether the weights of the steps to come depend on it."""
        return when_resumed(self.setting) == "course"

    def record(self, step: int) -> dict[str, Any]:
        """The change as ``run.json`` keeps it."""
        return {"step": step, "setting": self.setting, "from": self.before, "to": self.after}


def compared_settings(
    config: RunConfig,
    precision: str,
    base: str,
    dataset: str,
    start: str | None = None,
    source: str | None = None,
    adapters: Sequence[Mark] = (),
) -> dict[str, Any]:
    """List the settings that a checkpoint keeps, to be compared when a run goes on from it.

    Args:
        base: Identity of the base's weights.
        dataset: Identity of the dataset's content, as it is encoded.
        start: Identity of the file that the adapter starts from; None without one.
        source: Identity of the dataset's content in any precision; None where it is not known.
        adapters: Those that are part of the base.

    Returns:
        JSON values by YAML path. Memory settings are those of the run file; of a format that was
        chosen nothing is known here.
    """
    flat = flattened(config.model_dump(mode="json"))
    kept = {path: value for path, value in flat.items() if when_resumed(path) != "free"}
    kept[_FOLDERS] = [folder_without_places(folder) for folder in kept[_FOLDERS]]
    kept["training.precision"] = precision
    kept[FORMAT] = _made(kept[FORMAT])
    own = {_BASE: base, _DATASET: dataset, _SOURCE: source, START: start}
    return kept | own | {ADAPTERS: list(adapters)}


def changed_settings(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> list[Change]:
    """Compare a checkpoint's settings with the run's.

    A setting that the checkpoint does not know is newer than it: it was made with what is now the
    default; or, where it does not decide the weights, with a value that is not known.
    """
    before = flattened(RunConfig().model_dump(mode="json")) | dict(checkpoint.settings)
    before[FORMAT] = checkpoint_base_format(checkpoint)
    changes: list[Change] = []
    for path in sorted((checkpoint.settings.keys() | settings.keys()) - {SCHEDULE}):
        if path not in checkpoint.settings and when_resumed(path) == "around":
            continue
        same = are_same if path == ADAPTERS else operator.eq
        if path != _SOURCE and not same(before.get(path), settings.get(path)):
            changes.append(Change(path, before.get(path), settings.get(path)))
    source = settings.get(_SOURCE)
    same_source = source is not None and checkpoint.settings.get(_SOURCE) == source
    if same_source and any(change.setting == "training.precision" for change in changes):
        # The same images and captions, encoded in the other precision.
        changes = [change for change in changes if change.setting != _DATASET]
    return changes


def checkpoint_base_format(checkpoint: Checkpoint) -> str:
    """The format that the base had in the run that made a checkpoint."""
    return _made(checkpoint.settings.get(FORMAT, "auto"))


def _made(base_format: str) -> str:
    # Before formats were chosen, and where none is, 'auto' is dense.
    return "dense" if base_format == "auto" else base_format


def refuse_changes(
    checkpoint: Checkpoint, settings: Mapping[str, Any], config: RunConfig
) -> list[Change]:
    """Refuse to go on as another run than the one that made the checkpoint.

    Returns:
        The settings that have changed and may.

    Raises:
        ConfigError: When another setting has changed, or the run is shorter than what the
            checkpoint has made.
    """
    changes = changed_settings(checkpoint, settings)
    refused = [each for each in changes if when_resumed(each.setting) == "decides"]
    if refused:
        raise ConfigError(
            "resume: another configuration than the checkpoint's: " + "; ".join(map(str, refused)),
            f"the settings that the checkpoint was made with; only {MAY_CHANGE} may change",
            "Undo the change, or start a new run with resume=none; adapter.start_from begins it "
            "with what an adapter file of this one has learned.",
        )
    steps = run_length(config)
    if checkpoint.step > steps:
        raise ConfigError(
            f"training.steps: {steps}, but the checkpoint has made {checkpoint.step} steps",
            f"at least {checkpoint.step}",
            "Raise training.steps, or name an earlier checkpoint with resume=PATH.",
        )
    return changes


def recorded_changes(
    record: Mapping[str, Any], changes: Sequence[Change], step: int
) -> list[dict[str, Any]]:
    """The changes of a run's whole course.

    Args:
        record: The run's ``run.json``, as it was before the run goes on.
        step: Steps that the run goes on from; changes from there on belong to a course that is
            given up.
    """
    known = record.get("changes")
    kept = [each for each in known if each["step"] < step] if isinstance(known, list) else []
    return [*kept, *(change.record(step) for change in changes)]


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == _DIGEST


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
