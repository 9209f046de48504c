"""All that a run writes: metrics, previews, checkpoints and, at the end, the adapter.

``metrics.jsonl`` is for programs. TensorBoard's events, for people, repeat what it says; so
whatever is wrong with TensorBoard is told once, and the run goes on without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..adapter_files.metadata import RunInfo, adapter_metadata, header_problems
from ..adapter_files.names.key_map import KeyMap
from ..adapter_files.write.adapter_file import layout_name, write_adapter
from ..config import RunConfig
from ..config.defaults import run_length
from ..data.image import from_pixels
from ..errors import NonFiniteError, RunError, StorageError
from ..filesystem.storage import atomic_write
from ..requirements import installed_versions
from ..types import RunResult, StepResult
from .checkpoint import (
    RECORD,
    broken_step,
    checkpoint_folders,
    drop_later_checkpoints,
    prune_checkpoints,
    save_checkpoint,
    way_on,
)
from .encode_dataset import Prepared
from .metrics_file import MetricsWriter
from .observer import (
    CheckpointSaved,
    Noted,
    Observer,
    PreviewDone,
    RunFinished,
    StepDone,
    Stoppable,
    ValidationDone,
    Warned,
)
from .recovery import rate_share
from .run_folder import RunFolder
from .state import TrainState
from .unwritten import Unwritten

if TYPE_CHECKING:
    from types import TracebackType


_CHECKPOINT, _METRICS, _PREVIEW = "the checkpoint", "metrics.jsonl", "a preview"

RETURNS = "returns"
"""Where ``run.json`` lists from where to where the run has gone back, and with which share of the
learning rate it went on."""

DROPPED = "dropped_checkpoints"
"""Where ``run.json`` lists the steps whose checkpoints gave way to newer ones."""


class Recorder:
    """Writes one run down; only the first process of a run has one. Leaving it closes its files.

    Args:
        folder: The run's version folder.
        config: The run file.
        state: What is trained; it says how many steps were made before.
        key_map: The family's names in its host.
        settings: The settings that decide the run, kept in each checkpoint.
        header: What the adapter files' headers tell of the run; step and date are filled in here.
        observer: Hears what was written.

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
    ) -> None:
        self.folder = folder
        self._config = config
        self._state = state
        self._key_map = key_map
        self._settings = settings
        self._header = header
        self._observer = observer
        self._done = done = state.step
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
            folder.metrics, done, lambda reason: observer.notify(Noted(reason))
        )

    def record(self, result: StepResult) -> None:
        """Write a finished step down."""
        self._unwritten.attempt(_METRICS, lambda: self._metrics.write(result))
        self._observer.notify(StepDone(result, run_length(self._config)))

    def measured(self, step: int, loss: float) -> None:
        """Tell of the loss on held-out images; that of a step is written down with it."""
        if step == 0:
            self._unwritten.attempt(_METRICS, lambda: self._metrics.write_begin(loss))
        self._observer.notify(ValidationDone(step, loss))

    def save(self, step: int) -> None:
        """Write a checkpoint of the state after a step, then drop the oldest ones.

        A disk that takes nothing is told; `retry_due` says when to try again.

        Raises:
            NonFiniteError: When a weight is not finite; nothing is written.
        """
        self._unwritten.attempt(_CHECKPOINT, lambda: self._save(step))

    def retry_due(self) -> bool:
        """Whether a checkpoint that could not be written is to be tried again now."""
        return self._unwritten.due(_CHECKPOINT)

    def _save(self, step: int) -> None:
        folder = self._checkpoint(step)
        # Whoever has named a checkpoint to go on from may want to go on from it again.
        named = self._config.resume not in {"none", "auto", "latest"}
        keep = self._config.training.keep_checkpoints
        dropped = prune_checkpoints(self.folder.checkpoints, keep, self._done if named else None)
        self._saved(step, folder, dropped)

    def broken(self, step: int, first: int) -> str:
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
        learning_rate = self._config.training.optimizer.learning_rate
        given = (self.folder.checkpoints, step, self._done, learning_rate, precision, first)
        return way_on(*given)

    def went_back(self, step: int, to: int, returns: int) -> None:
        """Have ``run.json`` say that the run goes on from an older state, with a lower rate.

        Args:
            step: Which is not finite.
            to: Steps that the state has made.
            returns: How often the run has gone back, with this time.
        """
        share = rate_share(self._config.training.recovery, returns)
        entry = {"step": step, "to": to, "rate": share}
        known = self.folder.read_record().get(RETURNS)
        # A run that is killed and resumed finds its way back once more.
        kept = [each for each in known if each != entry] if isinstance(known, list) else []
        with contextlib.suppress(StorageError):
            self.folder.update_record(**{RETURNS: [*kept, entry]})

    def _checkpoint(self, step: int) -> Path:
        adapter = self._config.adapter
        # ComfyUI reads DoRA of the rows wrongly; one layout holds every adapter.
        layout = "lycoris" if adapter.dora and adapter.dora_axis == "output" else "comfyui"
        return save_checkpoint(
            self.folder.checkpoints,
            step,
            self._settings,
            self._state.tensors(),
            lambda path: self._write_adapter(path, layout, "fp32", step, proof=False),
        )

    def _saved(self, step: int, folder: Path, dropped: Sequence[int] = ()) -> None:
        record: dict[str, Any] = {"step": step}
        if dropped:
            before = self.folder.read_record().get(DROPPED)
            record[DROPPED] = [*(before if isinstance(before, list) else ()), *dropped]
        self.folder.update_record(**record)
        self._observer.notify(CheckpointSaved(step, folder, tuple(dropped)))

    @contextlib.contextmanager
    def saved_on_failure(self, step: int) -> Iterator[None]:
        """Write a checkpoint when the body fails, so that no step since the last one is lost.

        Args:
            step: Steps made.
        """
        try:
            yield
        except Exception:
            if step > 0:
                # On a full disk this fails too; the error that ended the run is the one to show.
                with contextlib.suppress(RunError):
                    self.save(step)
            raise

    def image(self, step: int, index: int, pixels: Tensor) -> None:
        """Keep a preview image.

        Args:
            step: Steps made.
            index: The prompt's index.
            pixels: `[3 or 4, H, W]` in [-1, 1].
        """
        path = self.folder.samples(step) / f"{index}.png"
        image = from_pixels(pixels)

        def write() -> None:
            atomic_write(path, lambda target: image.save(target, format="PNG"))

        if not self._unwritten.attempt(_PREVIEW, write):
            return
        self._metrics.write_image(step, index, pixels)
        self._images.append(path)
        self._observer.notify(PreviewDone(step, index, path))

    def finish(self, status: str, step: int) -> RunResult:
        """Export the adapter of a run that is done and close the record.

        Args:
            status: ``done`` or ``cancelled``.
            step: Steps made.

        Returns:
            Where everything is.

        Raises:
            StorageError: When adapter or state cannot be written; it names what is whole.
        """
        try:
            adapters = self._export(status, step)
            record: dict[str, Any] = {"status": status, "step": step}
            if status == "cancelled" and isinstance(self._observer, Stoppable):
                record["stopped_by"] = self._observer.stopped_by
            if skipped := sum(result.skipped for result in self._metrics.steps):
                record["skipped_steps"] = skipped
            self.folder.update_record(**record)
        except StorageError as error:
            raise self._lost(error, step) from error
        losses = [result.loss for result in self._metrics.steps if not result.skipped]
        result = RunResult(
            self.folder.path, status, step, tuple(adapters), tuple(self._images), tuple(losses)
        )
        self._observer.notify(RunFinished(result))
        return result

    def _export(self, status: str, step: int) -> list[Path]:
        """Write what a run ends with, and what could not be written before."""
        output = self._config.output
        adapters: list[Path] = []
        for layout in output.layouts if status == "done" else ():
            path = self.folder.path / layout_name(output.name, layout)
            self._write_adapter(path, layout, output.dtype, step)
            adapters.append(path)
        if self._unwritten.failed(_CHECKPOINT):
            self._save(step)
        return adapters or [self.folder.checkpoints / f"{step:06d}" / "adapter.safetensors"]

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
        self, path: Path, layout: str, dtype: str, step: int, *, proof: bool = True
    ) -> None:
        state = self._state.exported()
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        header = dataclasses.replace(self._header, step=step, date=now)
        metadata = adapter_metadata(state, header, self._config.output.metadata)
        write_adapter(path, state, layout, self._key_map, metadata, dtype, proof=proof)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        config: The run file.
        data: Base and dataset.
        precision: The number format that is computed in.
        hashes: Identities of base and dataset.
        workflow: What of the host started the run.
        observer: Told of a workflow that does not fit into a header which is to have it.
        base_adapters: Those that were part of the base.

    Returns:
        The header, of step 0 and without a date.
    """
    if config.output.metadata == "full":
        for problem in header_problems(workflow):
            observer.notify(Warned(problem))
    names = data.family.header_names.get(data.location.variant)
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
