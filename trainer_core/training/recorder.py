"""All that a run writes: metrics, previews, checkpoints and, at the end, the adapter.

``metrics.jsonl`` is for programs. Trackers, for people, repeat what it says; so whatever is wrong
with one is told once, and the run goes on without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import Tensor

from ..adapter_files.metadata import RunInfo, adapter_metadata, header_problems
from ..adapter_files.names.key_map import KeyMap
from ..adapter_files.write.write_adapter import layout_name, write_adapter
from ..config import RunConfig
from ..config.defaults import run_length
from ..data.image import from_pixels
from ..errors import NonFiniteError, RunError, StorageError
from ..filesystem.storage import atomic_write
from ..inference.preview_files import can_save_movies, preview_ending, save_movie, save_preview
from ..requirements import installed_versions
from ..types import RunResult, Sound, StepResult
from .checkpoints.checkpoint import (
    ADAPTER_FILE,
    checkpoint_folders,
    drop_later_checkpoints,
    prune_checkpoints,
    save_checkpoint,
)
from .checkpoints.checkpoint_record import CheckpointRecord
from .checkpoints.find_checkpoint import RECORD, broken_step, resume_advice
from .checkpoints.longer_run import SCHEDULE, ReplannedSchedule
from .checkpoints.post_hoc_ema import POWER_FACTS, layer_outlines
from .checkpoints.run_folder import RunFolder
from .checkpoints.train_state import TrainState, Weights
from .metrics.advice import ADVICE, Adviser, Course
from .metrics.full_disk import Unwritten
from .metrics.loss_ledger import LEDGER
from .metrics.metrics_file import MetricsWriter
from .metrics.tensorboard import TensorBoard
from .metrics.tracker import Tracker
from .metrics.weights_and_biases import WeightsAndBiases
from .observer import (
    CheckpointSaved,
    Noted,
    Observer,
    PreviewDone,
    RunFinished,
    StepDone,
    StopCause,
    ValidationDone,
    Warned,
)
from .prepare.encode_dataset import Prepared

_CHECKPOINT, _METRICS = "the checkpoint", "metrics.jsonl"
_PREVIEW, _MOVIE = "a preview", "a preview as MP4"

_BAD, _OFTEN, _NAMED = 3.0, 10, 3
"""Images of such a ratio that were seen so often are named at the end, so many of them."""

EARLY_STOP = "training.early_stop"
"""What ``run.json`` names as `stopped_by` of a run that got no better."""
LEVELS = "noise_levels"
"""Where ``run.json`` says how many samples were trained at which noise levels (`RunResult`)."""


def make_trackers(
    config: RunConfig, folder: Path, done: int, warn: Callable[[str], None]
) -> list[Tracker]:
    """Those that ``metrics.trackers`` names, each of which warns in one line of what it cannot."""
    named: Mapping[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(folder, done, warn),
        "wandb": lambda: WeightsAndBiases(folder, config, warn),
    }
    return [named[name]() for name in dict.fromkeys(config.metrics.trackers)]


_IMAGE_AXES = 3


class Recorder:
    """Writes one run down; only the first process of a run has one.

    Args:
        state: What is trained; it says how many steps were made before.
        key_map: The family's names in its host.
        settings: The settings that decide the run, kept in each checkpoint.
        header: What the adapter files' headers tell of the run; step and date are filled in here.
        frame_rate: Frames per second of previews that are clips.
        course: What advice depends on; None for a run that is given none.

    Raises:
        StorageError: When the folder cannot be written.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        state: TrainState,
        key_map: KeyMap,
        settings: Mapping[str, Any],
        header: RunInfo,
        observer: Observer,
        frame_rate: float = 0.0,
        course: Course | None = None,
    ) -> None:
        self.folder = folder
        self._config = config
        self._state = state
        self._key_map = key_map
        self._settings = settings
        self._header = header
        self._observer = observer
        self._frame_rate = frame_rate
        self._outlines: dict[str, Any] | None = None
        self._adviser = None if course is None else self._make_adviser(course)
        self._start()

    def _make_adviser(self, course: Course) -> Adviser:
        folder = self.folder
        base = folder.samples(0)
        return Adviser(
            dataclasses.replace(course, of_base=lambda: sorted(base.glob("*"))),
            self._observer,
            folder.read_record().get(ADVICE),
            keep=lambda advice: folder.update_record(**{ADVICE: advice}),
            checkpoints=lambda: [int(each.name) for each in checkpoint_folders(folder.checkpoints)],
        )

    def reopen(self, replanned: ReplannedSchedule | None) -> None:
        """Continue the files from the state's step; what was written behind it is dropped."""
        self._metrics.close()
        self._settings = {**self._settings, SCHEDULE: replanned}
        self._start()

    def _start(self) -> None:
        folder, observer = self.folder, self._observer
        self._done = done = self._state.step
        self._images: list[Path] = []
        self._unwritten = Unwritten(
            lambda line: observer.notify(Warned(line)), lambda line: observer.notify(Noted(line))
        )
        for note in folder.remove_leftovers():
            observer.notify(Noted(note))
        later = drop_later_checkpoints(folder.checkpoints, done)
        if later:
            steps = ", ".join(map(str, later))
            message = f"Going on from step {done}; the later checkpoints ({steps}) are recomputed."
            observer.notify(Noted(message))
        folder.drop_later_samples(done)
        self._metrics = MetricsWriter(
            folder.metrics,
            done,
            lambda reason: observer.notify(Noted(reason)),
            lambda *about: make_trackers(self._config, *about),
        )
        measured = self._metrics.totals.held_out
        self._checkpoints = CheckpointRecord(folder, self._state.best, measured)
        # A full disk ends no run; the next checkpoint writes them again.
        with contextlib.suppress(StorageError):
            self._checkpoints.go_on(done)
            if done or (folder.path / LEDGER).exists():
                self._write_ledger(done)

    def record(self, result: StepResult) -> None:
        """Write a finished step down."""
        self._unwritten.attempt(_METRICS, lambda: self._metrics.write(result))
        self._observer.notify(StepDone(result, run_length(self._config)))
        self._judge(result)

    def _judge(self, result: StepResult) -> None:
        """Give advice on what was measured behind a step."""
        if self._adviser is None:
            return
        losses, best = self._metrics.totals.held_out, self._state.best
        if result.norms:
            known = best.known and math.isfinite(best.base)
            moved = best.loss / best.base - 1 if known else None
            self._adviser.size(result.step, result.norms, moved)
        if result.validation_loss is not None:
            self._adviser.held_out(result.step, losses, best.base)

    def record_validation(self, step: int, loss: float, trained: float | None) -> None:
        """Tell of the losses on held-out and trained images.

        Those of a step are written with it, but for one that the run had made before it started.
        """
        if step == 0:
            self._unwritten.attempt(_METRICS, lambda: self._metrics.write_begin(loss, trained))
        elif step == self._done:
            late = functools.partial(self._metrics.write_late, step, loss, trained)
            self._unwritten.attempt(_METRICS, late)
        self._observer.notify(ValidationDone(step, loss, trained))

    def save(self, step: int) -> bool:
        """Write a checkpoint of the state after a step, then drop the oldest ones.

        A disk that takes nothing is told; `retry_due` says when to try again.

        Returns:
            Whether it is written.

        Raises:
            NonFiniteError: When a weight is not finite; nothing is written.
        """
        return self._unwritten.attempt(_CHECKPOINT, lambda: self._save(step))

    def retry_due(self) -> bool:
        """Whether a checkpoint that could not be written is to be tried again now."""
        return self._unwritten.due(_CHECKPOINT)

    def _save(self, step: int) -> None:
        folder = self._checkpoint(step)
        # Before the one that was best until now is removed.
        self._checkpoints.mark_best()
        self._write_ledger(step)
        # Whoever has named a checkpoint to go on from may want to go on from it again.
        named = self._config.resume not in {"none", "auto", "latest"}
        spared = self._checkpoints.spared() | ({self._done} if named else set())
        rule = self._config.training
        dropped = prune_checkpoints(
            self.folder.checkpoints, rule.keep_checkpoints, rule.keep_every, spared
        )
        self._saved(step, folder, dropped)

    def _write_ledger(self, step: int) -> None:
        if self._state.ledger is not None:
            self._state.ledger.write(self.folder.path, step)

    def save_before_failed_step(self, step: int, first: int) -> str:
        """Save the state before a step that ends the run, beside the older ones.

        Args:
            step: Which is not finite.
            first: Of those in a row; the others were left out.

        Returns:
            How to go on, in words.
        """
        precision = self._header.precision or ""
        # What the step before has left may be not finite either, and the disk full.
        with contextlib.suppress(NonFiniteError, StorageError):
            if first > 1:
                self._saved(step - 1, self._checkpoint(step - 1))
        with contextlib.suppress(StorageError):
            self.folder.update_record(**{RECORD: broken_step(step, precision, first)})
        return resume_advice(
            self.folder.checkpoints,
            step,
            self._done,
            learning_rate=self._config.training.optimizer.learning_rate,
            precision=precision,
            first=first,
        )

    def record_restore(self, step: int, to: int, restores: int) -> None:
        """As `CheckpointRecord.record_restore`."""
        self._checkpoints.record_restore(step, to, restores, self._config.training.recovery)

    def _checkpoint(self, step: int) -> Path:
        adapter = self._config.adapter
        # ComfyUI reads DoRA of the rows wrongly; one layout holds every adapter.
        layout = "lycoris" if adapter.dora and adapter.dora_axis == "output" else "comfyui"
        return save_checkpoint(
            self.folder.checkpoints,
            step,
            self._settings,
            tensors=self._state.tensors(),
            write_adapter=lambda path: self._write_adapter(
                path, layout, "fp32", step=step, weights=self._main, proof=False
            ),
            facts=self._power_facts(),
        )

    @property
    def _main(self) -> Weights:
        """What checkpoints and the exported adapter hold; `both` adds a second one at the end."""
        return "last" if self._config.training.ema.export == "last" else "average"

    def _power_facts(self) -> dict[str, Any]:
        """What makes an adapter of a checkpoint's averages, besides their tensors."""
        about = None if self._state.average is None else self._state.average.about_power()
        if about is None:
            return {}
        if self._outlines is None:
            self._outlines = layer_outlines(self._state.adapter.state())
        return {POWER_FACTS: {**about, "layers": self._outlines}}

    def _saved(self, step: int, folder: Path, dropped: Sequence[int] = ()) -> None:
        self._checkpoints.saved(step, dropped)
        self._observer.notify(CheckpointSaved(step, folder, tuple(dropped)))

    @contextlib.contextmanager
    def saved_on_failure(self, step: int) -> Iterator[None]:
        """Write a checkpoint when the body fails, so that no step since the last one is lost."""
        try:
            yield
        except Exception:
            if step > 0:
                # On a full disk this fails too; the error that ended the run is the one to show.
                with contextlib.suppress(RunError):
                    self.save(step)
            raise

    def write_preview(
        self, step: int, index: int, pixels: Tensor, sound: Sound | None = None
    ) -> None:
        """Keep a preview image.

        Args:
            pixels: `[3 or 4, H, W]` in [-1, 1]; of a clip `[T, 3, H, W]`.
        """
        frames = pixels if pixels.ndim > _IMAGE_AXES else pixels[None]
        images = [from_pixels(frame) for frame in frames]
        path = self.folder.samples(step) / f"{index}{preview_ending(len(images))}"

        def write() -> None:
            atomic_write(path, lambda target: save_preview(images, target, self._frame_rate))

        if not self._unwritten.attempt(_PREVIEW, write):
            return
        movie, rate = path.with_suffix(".mp4"), self._frame_rate

        def write_movie() -> None:
            atomic_write(movie, lambda target: save_movie(images, target, rate, sound))

        if len(images) > 1 and can_save_movies():
            self._unwritten.attempt(_MOVIE, write_movie)
        self._metrics.write_preview(step, index, frames, rate=rate, movie=movie)
        self._images.append(path)
        self._observer.notify(PreviewDone(step, index, path))
        if self._adviser is not None:
            self._adviser.preview(step, images[0])

    def finish(self, status: str, step: int) -> RunResult:
        """Export the adapter of a run that is done and close the record.

        Args:
            status: ``done`` or ``cancelled``.

        Raises:
            StorageError: When adapter or state cannot be written; it names what is whole.
        """
        try:
            adapters = self._export(status, step)
            totals = self._metrics.totals
            record: dict[str, Any] = {"status": status, "step": step, LEVELS: totals.levels}
            if self._why(status, step):
                record["stopped_by"] = EARLY_STOP
            if status == "cancelled" and isinstance(self._observer, StopCause):
                record["stopped_by"] = self._observer.stopped_by
            if totals.skipped:
                record["skipped_steps"] = totals.skipped
            self.folder.update_record(**record)
        except StorageError as error:
            raise self._lost(error, step) from error
        result = RunResult(
            self.folder.path,
            status,
            step,
            adapters=tuple(adapters),
            pictures=tuple(self._images),
            losses=totals.losses,
            best=self._checkpoints.best(),
            stopped_early=self._why(status, step),
            levels=totals.levels,
        )
        self._observer.notify(RunFinished(result))
        return result

    def _export(self, status: str, step: int) -> list[Path]:
        """Write what a run ends with, and what could not be written before."""
        output, ema = self._config.output, self._config.training.ema
        adapters: list[Path] = []
        exported: dict[str, Weights] = {}
        if status == "done":
            self._tell_worst()
            best = self._state.best
            if self._adviser is not None and best.known:
                self._adviser.ended(step, best.step, best.loss, best.base)
            exported[output.name] = self._main
            if ema.decay and ema.export == "both":
                exported[f"{output.name}_last"] = "last"
        for name, weights in exported.items():
            for layout in output.layouts:
                path = self.folder.path / layout_name(name, layout)
                self._write_adapter(path, layout, output.dtype, step=step, weights=weights)
                adapters.append(path)
        if self._unwritten.failed(_CHECKPOINT):
            self._save(step)
        return adapters or [self.folder.checkpoints / f"{step:06d}" / ADAPTER_FILE]

    def _tell_worst(self) -> None:
        """Name the images that are far worse than the others, if there are such."""
        ledger = self._state.ledger
        images = [] if ledger is None else ledger.images()
        worst = [each for each in images if each.ratio >= _BAD and each.times >= _OFTEN]
        if worst:
            named = ", ".join(f"{each.name} ({each.ratio:.1f} times)" for each in worst[:_NAMED])
            message = (
                f"Learned worst, by their error over what is usual at the same noise levels: "
                f"{named}. Look at these images and their captions; {LEDGER} lists all."
            )
            self._observer.notify(Noted(message))

    def _why(self, status: str, step: int) -> str:
        """Why the run ended by itself before its last step, if it did."""
        best, patience = self._state.best, self._config.training.early_stop
        if status != "done" or step >= run_length(self._config) or not best.stop_due(patience):
            return ""
        return (
            f"The loss on held-out images was not below that of step {best.step} for "
            f"{best.misses} measurements in a row (training.early_stop: {patience})."
        )

    def _lost(self, error: StorageError, step: int) -> StorageError:
        """The error of a run whose end cannot be written: what is whole, and how to go on."""
        saved = checkpoint_folders(self.folder.checkpoints)
        whole = (
            f"the last whole state is that of step {int(saved[-1].name)} in {saved[-1]}"
            if saved
            else "no state of the run is on the disk"
        )
        found = f"{error.found}; the run has made {step} steps, and {whole}"
        return StorageError(found, error.expected, error.remedy)

    def _write_adapter(
        self,
        path: Path,
        layout: str,
        dtype: str,
        step: int,
        weights: Weights,
        *,
        proof: bool = True,
    ) -> None:
        state = self._state.exported(weights)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        kept = self._state.average if weights == "average" else None
        average = None if kept is None else kept.about_exponential()
        header = dataclasses.replace(self._header, step=step, date=now, average=average)
        metadata = adapter_metadata(state, header, self._config.output.metadata)
        write_adapter(
            path, state, layout, key_map=self._key_map, metadata=metadata, dtype=dtype, proof=proof
        )

    def close(self) -> None:
        """Close its files."""
        self._metrics.close()


def run_header(
    config: RunConfig,
    data: Prepared,
    precision: str,
    hashes: Mapping[str, str],
    workflow: Mapping[str, str],
    observer: Observer,
    base_adapters: Sequence[Mapping[str, Any]] = (),
) -> RunInfo:
    """Gather what the headers tell that does not change with its steps.

    Args:
        observer: Told of a workflow that does not fit into a header which is to have it.

    Returns:
        The header, of step 0 and without a date.
    """
    if config.output.metadata == "full":
        for problem in header_problems(workflow):
            observer.notify(Warned(problem))
    names = data.family.files.header_names.get(data.location.variant)
    return RunInfo(
        family=config.family,
        step=0,
        settings=config.model_dump(mode="json"),
        title=data.family.title,
        architecture=names.architecture if names else None,
        base_version=names.version if names else None,
        precision=precision,
        hashes=hashes,
        versions=installed_versions(),
        samples=data.dataset.own_images,
        workflow=workflow,
        base_adapters=base_adapters,
    )
