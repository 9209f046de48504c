"""`run_sweep`: trains the trials of a sweep one after another, and ranks them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
    storage_error,
)
from ...filesystem.temporary import remove_leftovers
from ...offload.machine import KeepingMachine, Machine
from ..checkpoints.checkpoint import ADAPTER_FILE
from ..checkpoints.find_checkpoint import BEST, best_step
from ..checkpoints.run_folder import METRICS, read_record
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
from .sweep_record import (
    ENDS,
    SweepResult,
    TrialResult,
    keep_earlier_results,
    read_results,
    sweep_adapter,
    write_record,
)
from .trials import Trial, in_words

_LOCK = "lock.json"


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
    finished = ENDS if stop_hopeless else {"done"}
    with _locked(folder):
        result = _resume(trials, folder, content)
        for index, trial in enumerate(trials):
            before = result.trials[index]
            if before.status in finished:
                continue
            # A run that ended in the moment before it was recorded is not trained again.
            after = _collected(trial, before) if before.status == "running" else before
            if after.status not in finished:
                rule = _rule(trials, result.trials[:index]) if stop_hopeless else None
                after = _trained(trial, result, index, begin=begin, rule=rule)
            result.trials[index] = after
            if after.name == result.best and after.best_step != before.best_step:
                result.best = None  # it went on, and has a better adapter
            _choose(result)
            write_record(result)
            if after.status == "cancelled":
                result.cancelled = True
                break
    return result


def _resume(trials: Sequence[Trial], folder: Path, content: str) -> SweepResult:
    """Take over the recorded results of the same trials; results of others are kept apart."""
    result, (best, recorded) = SweepResult(folder), read_results(folder)
    taken_over = set()
    for trial in trials:
        text = f"{content}\n{dump_config(trial.config)}"
        identity = hashlib.sha256(text.encode()).hexdigest()
        earlier = recorded.get(trial.name)
        if earlier is None or earlier.identity != identity:
            result.trials.append(TrialResult(trial.name, trial.values, identity))
            continue
        taken_over.add(trial.name)
        result.trials.append(replace(earlier, settings=trial.values))
        # The checkpoints of the best trial may have been removed since.
        if best == trial.name and sweep_adapter(folder).is_file():
            result.best, result.adapter = best, sweep_adapter(folder)
    if any(each.run and each.name not in taken_over for each in recorded.values()):
        keep_earlier_results(folder)
    _choose(result)
    write_record(result)
    return result


def _trained(
    trial: Trial, result: SweepResult, index: int, begin: Begin, rule: MedianRule | None
) -> TrialResult:
    """Train a trial; what became of it."""

    def note(**facts: Any) -> None:
        result.trials[index] = replace(result.trials[index], **facts)
        write_record(result)

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
            result.best, result.adapter = each.name, sweep_adapter(result.folder)
            atomic_write(result.adapter, functools.partial(shutil.copyfile, file))
            return


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
