"""`run_sweep`: trains the trials of a sweep one after another, and ranks them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...config import RunConfig
from ...config.read_run_file import dump_config
from ...device import borrowed_threads, resolve_device
from ...errors import ConfigError, InputError, StorageError, TrainerError
from ...families.registry import get_family
from ...filesystem.file_names import name_mistake
from ...filesystem.storage import (
    acquire,
    atomic_write,
    lock_holder,
    move,
    storage_error,
    write_json,
    write_text,
)
from ...filesystem.temporary import remove_leftovers, temporary_beside
from ...filesystem.text_files import read_object
from ...offload.machine import KeepingMachine, Machine
from ..checkpoints.checkpoint import ADAPTER_FILE
from ..checkpoints.find_checkpoint import BEST, best_step
from ..checkpoints.run_folder import METRICS, read_record, version_number
from ..checkpoints.run_names import CHECKPOINTS
from ..metrics.metrics_file import read_metrics
from ..observer import Event, Noted, Observer, RunCancelledError, RunRequests, RunStarted, StopCause
from ..prepare.encode_dataset import content_hashes, prepare
from ..recorder import EARLY_STOP
from ..run import train
from ..setup.refusals import require_possible, require_trainable
from ..setup.starting_point import read_start
from ..step.processes import SingleProcess
from .median_rule import MedianRule, curve_of
from .trials import Trial, Values, in_words

RECORD, TABLE = "sweep.json", "sweep.txt"
ENDS = frozenset({"done", "stopped"})
"""How a trial with an adapter ends: at its end, or by `MedianRule` or a person before it."""

_LOCK = "lock.json"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What became of a trial.

    Attributes:
        name: The ``output.name`` of its run.
        settings: What makes it differ.
        identity: Names run file, base and images, so that another sweep's result is not taken.
        status: ``waiting``, ``running``, ``cancelled``, ``failed``, or one of `ENDS`.
        loss: The lowest one on held-out images; None where there is none.
        best_step: Steps made when it was measured.
        steps: Steps of a whole run.
        seconds: Of its steps.
        run: The folder of its version, relative to ``output.dir``.
    """

    name: str
    settings: Values
    identity: str
    status: str = "waiting"
    loss: float | None = None
    best_step: int | None = None
    step: int = 0
    steps: int | None = None
    seconds: float = 0.0
    run: str | None = None
    reason: str = ""


@dataclass(slots=True)
class SweepResult:
    """A sweep as far as it has come.

    Attributes:
        folder: Where its record and its adapter are.
        trials: In the order of the sweep file.
        adapter: The best trial's adapter; None as long as none has ended.
        best: The name of its trial.
        cancelled: Whether it was cancelled before its last trial.
    """

    folder: Path
    trials: list[TrialResult] = field(default_factory=list)
    adapter: Path | None = None
    best: str | None = None
    cancelled: bool = False

    def ranked(self) -> list[TrialResult]:
        """All trials: of those that have ended the lowest loss first, then the others."""

        def place(each: TrialResult) -> float:
            ended = each.status in ENDS
            return each.loss if ended and each.loss is not None else float("inf")

        return sorted(self.trials, key=place)

    def record(self) -> dict[str, Any]:
        """What ``sweep.json`` says."""
        return {
            "ranked_by": "lowest loss on held-out images",
            "best": self.best,
            "adapter": self.adapter.name if self.adapter else None,
            "trials": [{**asdict(each), "settings": dict(each.settings)} for each in self.ranked()],
        }


def sweep_folder(config: RunConfig, name: str, file: str = "sweep") -> Path:
    """Where a sweep keeps its record, beside the runs of its trials.

    Args:
        name: The run's, which the trials share.
        file: The sweep file's name without its ending: two files have two folders.

    Raises:
        ConfigError: When both make no name of a folder.
    """
    own = f"{name}_{file}"
    if mistake := name_mistake(own):
        raise ConfigError(
            f"the sweep's folder would be {own[:200]!r}, which has {mistake}",
            "a sweep file whose name can be part of a folder's",
            "Rename the sweep file.",
        )
    return Path(config.output.dir) / own


class TrialWatch:
    """Follows the trial in training for its sweep, which may end it.

    Args:
        started: Told the folder of the trial's version.
        rule: May end the trial; None where nothing does.
    """

    def __init__(self, started: Callable[[Path], object], rule: MedianRule | None) -> None:
        self._started, self._rule = started, rule

    def observe(self, event: Event) -> None:
        """Take note of an event of the trial."""
        if isinstance(event, RunStarted):
            self._started(event.summary.folder)
        if self._rule is not None:
            self._rule.observe(event)

    def should_stop(self, tell: Callable[[Event], object]) -> bool:
        """Whether the trial ends here, which is then told."""
        if self._rule is None or not self._rule.should_stop():
            return False
        tell(self._rule.note())
        return True


Begin = Callable[[Trial, TrialWatch], str]
"""Trains a trial, or goes on with it; gives the status of its run."""


def run_sweep(
    trials: Sequence[Trial], folder: Path, begin: Begin, *, content: str, stop_hopeless: bool = True
) -> SweepResult:
    """Train every trial that has not ended yet, also those that have failed.

    Args:
        trials: All of them, which hold images out.
        folder: Where the record is kept, by this sweep alone.
        content: Names base and images.
        stop_hopeless: Whether `MedianRule` ends trials; where not, those that it has ended go on.

    Raises:
        InputError: When another sweep works in the folder.
        StorageError: When the disk is full; the next start goes on.
    """
    result = SweepResult(folder)
    with _locked(folder):
        best, known = _known(folder / RECORD)
        for trial in trials:
            own = f"{content}\n{dump_config(trial.config)}"
            identity = hashlib.sha256(own.encode()).hexdigest()
            new = TrialResult(trial.name, trial.values, identity)
            found = known.get(trial.name)
            if found is not None and found.identity == new.identity:
                new = replace(found, settings=trial.values)
            result.trials.append(new)
            if best == trial.name and found is not None and new.identity == found.identity:
                # Its checkpoints may have been cleaned up since.
                kept = _adapter_of(folder)
                result.best, result.adapter = (best, kept) if kept.is_file() else (None, None)
        own = {(each.name, each.identity) for each in result.trials}
        if any(each.run and (each.name, each.identity) not in own for each in known.values()):
            _keep_earlier(folder)
        _choose(result)
        _save(result)
        for index, trial in enumerate(trials):
            made = result.trials[index]
            # A run that ended in the moment before it was written down is not made again.
            ended = _collected(trial, made) if made.status == "running" else made
            over = ENDS if stop_hopeless else {"done"}
            if made.status in over:
                continue
            if ended.status not in over:
                rule = _rule(trials, result.trials[:index]) if stop_hopeless else None
                ended = _trained(trial, result, index, begin, rule)
            result.trials[index] = ended
            if ended.name == result.best and ended.best_step != made.best_step:
                result.best = None  # it went on, and has a better adapter
            _choose(result)
            _save(result)
            if ended.status == "cancelled":
                result.cancelled = True
                break
    return result


def _trained(
    trial: Trial, result: SweepResult, index: int, begin: Begin, rule: MedianRule | None
) -> TrialResult:
    """Train a trial; what became of it."""

    def note(**facts: Any) -> None:
        result.trials[index] = replace(result.trials[index], **facts)
        _save(result)

    place = Path(trial.config.output.dir)
    note(status="running", reason="")
    watch = TrialWatch(lambda folder: note(run=folder.relative_to(place).as_posix()), rule)
    try:
        status = begin(trial, watch)
    except StorageError:
        raise  # the disk is full for the next one too
    except TrainerError as error:
        found = _collected(trial, result.trials[index])
        reason = " ".join(f"{error.found}. {error.remedy}".split())
        return replace(found, status="failed", reason=reason)
    found = _collected(trial, result.trials[index])
    return found if status == "done" else replace(found, status="cancelled")


def _rule(trials: Sequence[Trial], before: Sequence[TrialResult]) -> MedianRule:
    every = trials[0].config.dataset.validation.every
    place = Path(trials[0].config.output.dir)
    ended = [each.run for each in before if each.status == "done" and each.run]
    return MedianRule([curve_of(place / each, every) for each in ended], every)


def _collected(trial: Trial, made: TrialResult) -> TrialResult:
    """What a trial's run says of itself."""
    if made.run is None:
        return made
    version = Path(trial.config.output.dir) / made.run
    try:
        record = read_record(version)
        steps = read_metrics(version / METRICS)
        best = record.get(BEST) or {}
        step, whole = int(record["step"]), int(record["steps"])
        loss = None if best.get("loss") is None else float(best["loss"])
        best_step = None if best.get("step") is None else int(best["step"])
    except (InputError, OSError, LookupError, TypeError, ValueError, OverflowError, AttributeError):
        return made
    status = made.status
    if record.get("status") == "done":
        ended = step >= whole or record.get("stopped_by") == EARLY_STOP
        status = "done" if ended else "stopped"
    return replace(
        made,
        status=status,
        loss=loss,
        best_step=best_step,
        step=step,
        steps=whole,
        seconds=round(sum(each.step_seconds for each in steps), 3),
    )


def _choose(result: SweepResult) -> None:
    """Copy the adapter of the best trial that has one still to where the sweep's result is."""
    for each in result.ranked():
        if each.status not in ENDS or each.loss is None or each.run is None:
            continue
        if each.name == result.best:
            return
        version = result.folder.parent / each.run
        step = best_step(version)
        if step is None:
            continue
        file = version / CHECKPOINTS / f"{step:06d}" / ADAPTER_FILE
        if file.is_file():
            result.best, result.adapter = each.name, _adapter_of(result.folder)
            atomic_write(result.adapter, functools.partial(shutil.copyfile, file))
            return


def _adapter_of(folder: Path) -> Path:
    return folder / f"{folder.name.removesuffix('_sweep')}.safetensors"


def _keep_earlier(folder: Path) -> None:
    """Copy the record and the adapter of trials with other settings out of the way."""
    number = 0
    while (target := folder / f"earlier_{number}").exists():
        number += 1
    try:
        with temporary_beside(target, ending="") as draft:
            draft.mkdir()
            for file in (folder / RECORD, folder / TABLE, _adapter_of(folder)):
                if file.is_file():
                    shutil.copyfile(file, draft / file.name)
            move(draft, target)
    except OSError as error:
        raise storage_error(target, error) from error


def _save(result: SweepResult) -> None:
    write_json(result.folder / RECORD, result.record())
    write_text(result.folder / TABLE, sweep_table(result) + "\n")


def sweep_table(result: SweepResult) -> str:
    """The trials, the best first, as text."""
    rows = [("", "settings", "held-out loss", "at step", "steps", "seconds", "status")]
    rows += [
        (
            "*" if each.name == result.best else "",
            in_words(each.settings),
            "-" if each.loss is None else f"{each.loss:.5g}",
            "-" if each.best_step is None else str(each.best_step),
            f"{each.step}/{each.steps}" if each.steps else "-",
            f"{each.seconds:.1f}",
            f"{each.status}: {each.reason}" if each.reason else each.status,
        )
        for each in result.ranked()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if result.adapter:
        lines.append(f"best: {result.best}, copied to {result.adapter}")
    return "\n".join(lines)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = acquire(folder / _LOCK)
    except OSError as error:
        raise storage_error(folder, error) from error
    if lock is None:
        owner = lock_holder(folder / _LOCK)
        by = "another process" if owner is None else f"process {owner.pid} on {owner.host}"
        raise InputError(
            f"{folder} is in use by a sweep of {by}",
            "one sweep at a time in a folder",
            "Wait for it or cancel it, or give this one another output.name. If no such process "
            f"exists any more, remove {_LOCK} in that folder.",
        )
    with lock:
        remove_leftovers(folder)
        yield


def _known(path: Path) -> tuple[Any, dict[str, TrialResult]]:
    """What an earlier start has written down: the best trial's name, and all by their names.

    Raises:
        InputError: When it is not a record of a sweep.
    """
    if not path.exists():
        return None, {}

    def refuse(reason: str) -> InputError:
        return InputError(
            f"{path} cannot be read ({reason})",
            "the record that a sweep keeps",
            "Remove it: trials that have ended are then trained no further, but looked at again.",
        )

    found = read_object(path, refuse)
    try:
        results = [TrialResult(**each) for each in found["trials"]]
    except (TypeError, LookupError) as error:
        raise refuse(str(error)) from error
    for each in results:
        if wrong := [key for key, fits in _FITS.items() if not fits(getattr(each, key))]:
            raise refuse(f"{wrong[0]} of a trial is {str(getattr(each, wrong[0]))[:80]!r}")
        if each.run is not None:
            name, _, version = each.run.rpartition("/")
            if name != each.name or version_number(Path(version)) < 0:
                raise refuse(f"run of the trial {each.name[:80]} is {each.run[:80]!r}")
    return found.get("best"), {each.name: each for each in results}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and abs(value) < math.inf


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "settings": lambda value: isinstance(value, dict),
    "identity": _is_text,
    "status": lambda value: value in ("waiting", "running", "cancelled", "failed", *ENDS),
    "loss": lambda value: value is None or _is_number(value),
    "best_step": lambda value: value is None or _is_count(value),
    "step": _is_count,
    "steps": lambda value: value is None or _is_count(value),
    "seconds": _is_number,
    "run": lambda value: value is None or _is_text(value),
    "reason": _is_text,
}
"""What a value of a `TrialResult` may be; its file may come from anybody."""


class _TrialObserver:
    """Passes on what the observer of the sweep hears and asks for."""

    def __init__(self, inner: Observer, watch: TrialWatch) -> None:
        self._inner, self._watch = inner, watch

    @property
    def stopped_by(self) -> str | None:
        """As the sweep's observer."""
        return self._inner.stopped_by if isinstance(self._inner, StopCause) else None

    def notify(self, event: Event) -> None:
        """Pass an event on."""
        self._watch.observe(event)
        self._inner.notify(event)

    def requests(self) -> RunRequests:
        """What the sweep's observer asks for."""
        return self._inner.requests()

    def cancelled(self) -> bool:
        """Whether the sweep's observer has cancelled."""
        return self._inner.cancelled()

    def should_stop(self) -> bool:
        """Whether the sweep ends the trial."""
        return self._watch.should_stop(self._inner.notify)


def sweep(
    trials: Sequence[Trial],
    name: str,
    observer: Observer,
    *,
    file: str = "sweep",
    stop_hopeless: bool = True,
) -> SweepResult:
    """Train a sweep of run files: images are encoded once and the base is loaded once.

    Args:
        trials: What `file_trials` gave.
        name: The sweep's, as of the run file that the trials share.
        observer: Hears the events of every trial, and may cancel the sweep.

    Raises:
        TrainerError: When a trial cannot be trained, before the first one is, or as `run_sweep`.
    """
    config = trials[0].config
    folder = sweep_folder(config, name, file)
    if not config.cache.manifest:
        require_held_out(config.dataset.holds_out)
    device = resolve_device(config.memory.device)
    with borrowed_threads(config.memory, embedded=config.base.path == "embedded"):
        try:
            content = _prepared(trials, observer, SingleProcess(device))
        except RunCancelledError:
            return SweepResult(folder, cancelled=True)
    keeping = KeepingMachine()

    def begin(trial: Trial, watch: TrialWatch) -> str:
        own = trial.config
        # What is put on the base beside the adapter is not taken off again.
        keeps = not own.base.adapters and not own.training.text_encoder.train
        if not keeps:
            keeping.drop_base()
        machine = keeping if keeps else Machine()
        where = SingleProcess(resolve_device(own.memory.device))
        observer.notify(Noted(f"Trial {trial.name}: {in_words(trial.values)}."))
        try:
            return train(own, _TrialObserver(observer, watch), where, machine=machine).status
        except BaseException:
            keeping.drop_base()  # nobody knows what an error has left of it
            raise

    try:
        return run_sweep(trials, folder, begin, content=content, stop_hopeless=stop_hopeless)
    finally:
        keeping.drop_base()


def _prepared(trials: Sequence[Trial], observer: Observer, where: SingleProcess) -> str:
    """Encode for the first trial, and refuse what no trial could be trained with; names content."""
    family = get_family(trials[0].config.family)

    def check(location: Any) -> None:
        for trial in trials:
            try:
                require_possible(trial.config, family, where)
                start = read_start(trial.config, family)
                require_trainable(trial.config, family, location, start)
            except InputError as error:
                found = f"the trial {in_words(trial.values)}: {error.found}"
                raise type(error)(found, error.expected, error.remedy) from error

    config = trials[0].config
    data = prepare(config, observer, where, within=None, family=family, check=check)
    require_held_out(any(data.dataset.validations))
    return str(sorted(content_hashes(data).items()))


def require_held_out(found: bool) -> None:
    """Refuse a sweep without held-out images.

    Raises:
        ConfigError: When nothing is held out.
    """
    if not found:
        raise ConfigError(
            "no image is held out, and trials are ranked by the loss on held-out images",
            "held-out images",
            "Set dataset.validation.share to 0.1, or give a folder of the dataset the role "
            "validation.",
        )
