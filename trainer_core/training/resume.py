"""Which checkpoint a run goes on from, and which settings may have changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..config.length import run_length
from ..config.run import names_step
from ..errors import ConfigError, InputError
from .checkpoint import Checkpoint, checkpoint_folders, is_checkpoint, read_checkpoint
from .run_folder import is_live, is_version, read_record, versions

FREE = frozenset(
    {
        "resume",
        "config_version",
        "cache",
        "base.path",
        "base.encoders",
        "adapter.start_from",
        "dataset.path",
        "dataset.regularization.path",
        "dataset.unreadable",
        "dataset.missing_caption",
        "dataset.missing_control",
        "dataset.missing_image",
        "output.dir",
    }
)
"""Sections and settings that say where something is, or what happens when it is not there. Base,
dataset and the file that an adapter starts from are compared by content instead of by path."""

COURSE = frozenset(
    {
        "training.optimizer.learning_rate",
        "training.optimizer.beta1",
        "training.optimizer.beta2",
        "training.optimizer.eps",
        "training.optimizer.weight_decay",
        "training.optimizer.lora_plus_ratio",
        "training.optimizer.rate_pattern",
        "training.schedule",
        "training.max_grad_norm",
        "training.precision",
    }
)
"""What changes the weights of the steps to come. A resumed run may change it, and says so."""

AROUND = frozenset(
    {
        "training.steps",
        "training.checkpoint_every",
        "training.keep_checkpoints",
        "preview",
        "memory",
        "output",
    }
)
"""What a resumed run may change too, and says: how long it trains, what it draws and writes."""

START = "adapter.start_from (content)"
"""Where a checkpoint's settings keep the identity of the file that the adapter started from."""

_DATASET = "dataset (content)"
_SOURCE = "dataset (source)"
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
        return f"{self.setting} was {_shown(self.before)} and is {_shown(self.after)}"

    @property
    def of_course(self) -> bool:
        """Whether the weights of the steps to come depend on it."""
        return _is_in(self.setting, COURSE)

    def record(self, step: int) -> dict[str, Any]:
        """The change as ``run.json`` keeps it."""
        return {"step": step, "setting": self.setting, "from": self.before, "to": self.after}


def find_checkpoint(config: RunConfig, precision: str | None = None) -> Path | None:
    """Find the checkpoint folder that ``resume`` means.

    Args:
        config: The run file.
        precision: The resolved precision. ``latest`` and ``auto`` pass over a state that is known
            to lead to a loss that is not finite in it; in another one it may not. Unset: they pass
            over it in any.

    Returns:
        The folder, or None for a new run.

    Raises:
        ConfigError: When ``latest``, a step or a path finds no checkpoint, or one that lies in no
            run's folder, where the run would go on.
    """
    if config.resume == "none":
        return None
    root = Path(config.output.dir) / config.output.name
    if config.resume == "auto":
        for version in reversed(versions(root)):
            found = checkpoint_folders(version / "checkpoints")
            if found and not is_live(version):
                promising = [path for path in found if not leads_nowhere(path, precision)]
                return promising[-1] if promising else None
        return None
    if config.resume != "latest" and not names_step(config.resume):
        return _named_checkpoint(Path(config.resume))
    for version in reversed(versions(root)):
        found = checkpoint_folders(version / "checkpoints")
        if config.resume == "latest" and found:
            promising = [path for path in found if not leads_nowhere(path, precision)]
            return (promising or found)[-1]
        for path in found:
            if config.resume != "latest" and int(path.name) == int(config.resume):
                return path
    what = "" if config.resume == "latest" else f" of step {config.resume}"
    raise ConfigError(
        f"resume: {config.resume}, but {root} has no checkpoint{what}",
        f"a run of this name with a checkpoint{what}",
        "Start it with resume=none, or check output.dir and output.name.",
    )


def compared_settings(
    config: RunConfig,
    precision: str,
    base: str,
    dataset: str,
    start: str | None = None,
    source: str | None = None,
) -> dict[str, Any]:
    """List the settings that a checkpoint keeps, to be compared when a run goes on from it.

    Args:
        config: The run file.
        precision: The resolved precision.
        base: Identity of the base's weights.
        dataset: Identity of the dataset's content, as it is encoded.
        start: Identity of the file that the adapter starts from; None without one.
        source: Identity of the dataset's content in any precision; None where it is not known.

    Returns:
        JSON values by YAML path.
    """
    flat = _flatten(config.model_dump(mode="json"), "")
    kept = {path: value for path, value in flat.items() if not _is_in(path, FREE)}
    kept["training.precision"] = precision
    return kept | {"base (content)": base, _DATASET: dataset, _SOURCE: source, START: start}


def changed_settings(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> list[Change]:
    """Compare a checkpoint's settings with the run's.

    A setting that the checkpoint does not know is newer than it: it was made with what is now the
    default, or, where it does not decide the weights, with nobody knows what.

    Args:
        checkpoint: What the run goes on from.
        settings: What `compared_settings` gave for the run.

    Returns:
        What differs, by path.
    """
    before = _flatten(RunConfig().model_dump(mode="json"), "") | dict(checkpoint.settings)
    changes: list[Change] = []
    for path in sorted(checkpoint.settings.keys() | settings.keys()):
        if path not in checkpoint.settings and _is_in(path, AROUND):
            continue
        if path != _SOURCE and before.get(path) != settings.get(path):
            changes.append(Change(path, before.get(path), settings.get(path)))
    if _same_source(checkpoint, settings) and any(
        change.setting == "training.precision" for change in changes
    ):
        # The same images and captions, encoded in the other precision.
        changes = [change for change in changes if change.setting != _DATASET]
    return changes


def refuse_changes(
    checkpoint: Checkpoint, settings: Mapping[str, Any], config: RunConfig
) -> list[Change]:
    """Refuse to go on as another run than the one that made the checkpoint.

    Args:
        checkpoint: What the run goes on from.
        settings: What `compared_settings` gave for the run.
        config: The run file.

    Returns:
        The settings that have changed and may.

    Raises:
        ConfigError: When another setting has changed, or the run is shorter than what the
            checkpoint has made.
    """
    changes = changed_settings(checkpoint, settings)
    refused = [each for each in changes if not _is_in(each.setting, COURSE | AROUND)]
    if refused:
        raise ConfigError(
            "resume: another configuration than the checkpoint's: " + "; ".join(map(str, refused)),
            "the settings that the checkpoint was made with; only learning rate, schedule, "
            "clipping, precision, steps, previews, checkpoints, memory and output may change",
            "Undo the change, or start a new run with resume=none.",
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
        changes: What changes now.
        step: Steps that the run goes on from; changes from there on belong to a course that is
            given up.
    """
    known = record.get("changes")
    kept = [each for each in known if each["step"] < step] if isinstance(known, list) else []
    return [*kept, *(change.record(step) for change in changes)]


def _same_source(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> bool:
    source = settings.get(_SOURCE)
    return source is not None and checkpoint.settings.get(_SOURCE) == source


def _is_in(path: str, places: frozenset[str]) -> bool:
    """Whether a setting, or a section that it is in, is among some."""
    parts = path.split(".")
    names = {".".join(parts[: count + 1]) for count in range(len(parts))}
    return not names.isdisjoint(places)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _named_checkpoint(path: Path) -> Path:
    # Absolute, because the run's folder is named by going up from the checkpoint's.
    path = path.absolute()
    found: list[Path] = []
    if is_checkpoint(path) or (path / "state.json").is_file():
        found = [path]
    elif path.is_dir():
        found = checkpoint_folders(path / "checkpoints") or checkpoint_folders(path)
    if found and is_version(found[-1].parent.parent):
        return found[-1]
    if found:
        raise ConfigError(
            f"resume: {found[-1]} is a checkpoint outside of its run's folder",
            "<output.dir>/<output.name>/v*/checkpoints/<step>, with the run.json of the run",
            "Copy the whole version folder instead of the checkpoint alone.",
        )
    raise ConfigError(
        f"resume: {path} is not a checkpoint",
        "'none', 'auto', 'latest', the step of a checkpoint, a checkpoint's folder or a run's "
        "version folder",
        "Look into <output.dir>/<output.name>/v*/checkpoints for the folders there are.",
    )


def _flatten(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        # A pattern table is one setting: its keys are regular expressions, not names.
        if isinstance(value, dict) and not path.endswith("_pattern"):
            flat |= _flatten(value, f"{path}.")
        else:
            flat[path] = value
    return flat


RECORD = "non_finite"
"""Where ``run.json`` keeps the step that broke, and the precision that it broke in.

Noise, samples and noise levels of a step are the same in every attempt. So the state before the
step that broke leads there again, whatever the learning rate is now; an earlier one may not.
"""


def broken_step(step: int, precision: str) -> dict[str, Any]:
    """The step that broke, as ``run.json`` keeps it."""
    return {"step": step, "precision": precision}


def leads_nowhere(checkpoint: Path, precision: str | None) -> bool:
    """Whether a checkpoint is known to lead to a number that is not finite in its next step.

    Args:
        checkpoint: Its folder, in a run's version.
        precision: What the run would compute in; None for any.
    """
    try:
        broken = read_record(checkpoint.parent.parent)[RECORD]
        step, found = int(broken["step"]), str(broken["precision"])
    except (InputError, ValueError, LookupError, TypeError, OverflowError):
        return False
    return int(checkpoint.name) == step - 1 and precision in {None, found}


def way_on(checkpoints: Path, step: int, begun: int, learning_rate: float, precision: str) -> str:
    """Say how a run goes on that broke.

    Args:
        checkpoints: The folder of its checkpoints, in the run's version.
        step: The step that broke.
        begun: The step that this attempt went on from; 0 when it began anew.
        learning_rate: The highest of the run.
        precision: What it computed in.

    Returns:
        What to do, for the command line and for ComfyUI.
    """
    saved = [int(path.name) for path in checkpoint_folders(checkpoints)]
    fine = [each for each in saved if each < step - 1]
    lower = f"training.optimizer.learning_rate={learning_rate / 10:g}"
    if newer := [each for each in fine if each > begun or not begun]:
        text = (
            f"Go on from the checkpoint of step {newer[-1]} with a lower learning rate: start "
            f"again with resume=latest {lower} (in ComfyUI: lower learning_rate and run the graph "
            "again)."
        )
    elif earlier := [each for each in fine if each < begun]:
        place = f"{checkpoints.parent.parent.name}/{checkpoints.parent.name}/{earlier[-1]:06d}"
        text = (
            f"The run broke soon after step {begun}, which it went on from. Go on from step "
            f"{earlier[-1]} with a lower learning rate: start again with resume={earlier[-1]} "
            f"{lower} (in ComfyUI: lower learning_rate, choose {place} as resume_from and run the "
            "graph again)."
        )
    else:
        text = (
            f"Start anew with a lower learning rate: resume=none {lower} (in ComfyUI: lower "
            "learning_rate, switch resume off and run the graph again)."
        )
    if precision != "fp32" and step - 1 in saved:
        text += (
            f" The state after step {step - 1} is saved as well: resume=latest "
            f"training.precision=fp32 tries step {step} from there (in ComfyUI: precision of Load "
            "Training Base)."
        )
    return text


__all__ = [
    "Change",
    "changed_settings",
    "compared_settings",
    "find_checkpoint",
    "read_checkpoint",
    "recorded_changes",
    "refuse_changes",
]
