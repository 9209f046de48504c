"""All that a run writes: metrics, previews, checkpoints and, at the end, the adapter."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..adapter_files.header import RunFacts, adapter_metadata
from ..adapter_files.names.key_map import KeyMap
from ..adapter_files.write.adapter_file import layout_name, write_adapter
from ..config import RunConfig
from ..config.length import run_length
from ..data.image import from_pixels
from ..errors import NonFiniteError, RunError
from ..filesystem.storage import atomic_write
from ..types import RunResult, StepResult
from .checkpoint import drop_later_checkpoints, prune_checkpoints, save_checkpoint
from .metrics import MetricsWriter
from .observer import (
    CheckpointSaved,
    Observer,
    PreviewDone,
    RunFinished,
    StepDone,
    Stoppable,
    Warned,
)
from .resume import RECORD, broken_step, way_on
from .run_folder import RunFolder
from .state import TrainState

if TYPE_CHECKING:
    from types import TracebackType


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
        header: RunFacts,
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
        self._pictures: list[Path] = []
        for note in folder.remove_leftovers():
            observer.notify(Warned(note))
        later = drop_later_checkpoints(folder.checkpoints, done)
        if later:
            steps = ", ".join(map(str, later))
            message = f"Going on from step {done}; the later checkpoints ({steps}) are recomputed."
            observer.notify(Warned(message))
        folder.drop_later_samples(done)
        self._metrics = MetricsWriter(
            folder.metrics, done, lambda reason: observer.notify(Warned(reason))
        )

    def record(self, result: StepResult) -> None:
        """Write a finished step down."""
        self._metrics.write(result)
        self._observer.notify(StepDone(result, run_length(self._config)))

    def save(self, step: int) -> None:
        """Write a checkpoint of the state after a step, then drop the oldest ones.

        Raises:
            NonFiniteError: When a weight is not finite; nothing is written.
            StorageError: When the disk is full or not writable.
        """
        try:
            folder = self._checkpoint(step)
        except NonFiniteError as error:
            remedy = self._give_up(step + 1)
            raise NonFiniteError(error.found, error.expected, remedy) from error
        prune_checkpoints(self.folder.checkpoints, self._config.training.keep_checkpoints)
        self._saved(step, folder)

    def broken(self, step: int) -> str:
        """Save the state before a step that is not finite, beside the older ones.

        Returns:
            How to go on, in words.
        """
        if step > 1:
            # What the step before has left may be not finite either.
            with contextlib.suppress(NonFiniteError):
                self._saved(step - 1, self._checkpoint(step - 1))
        return self._give_up(step)

    def _give_up(self, step: int) -> str:
        precision = self._header.precision or ""
        self.folder.update_record(**{RECORD: broken_step(step, precision)})
        learning_rate = self._config.training.optimizer.learning_rate
        return way_on(self.folder.checkpoints, step, self._done, learning_rate, precision)

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

    def _saved(self, step: int, folder: Path) -> None:
        self.folder.update_record(step=step)
        self._observer.notify(CheckpointSaved(step, folder))

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

    def picture(self, step: int, index: int, pixels: Tensor) -> None:
        """Keep a preview image.

        Args:
            step: Steps made.
            index: The prompt's index.
            pixels: `[3, H, W]` in [-1, 1].
        """
        path = self.folder.samples(step) / f"{index}.png"
        image = from_pixels(pixels)
        atomic_write(path, lambda target: image.save(target, format="PNG"))
        self._metrics.write_image(step, index, pixels)
        self._pictures.append(path)
        self._observer.notify(PreviewDone(step, index, path))

    def finish(self, status: str, step: int) -> RunResult:
        """Export the adapter of a run that is done and close the record.

        Args:
            status: ``done`` or ``cancelled``.
            step: Steps made.

        Returns:
            Where everything is.
        """
        output = self._config.output
        adapters: list[Path] = []
        if status == "done":
            for layout in output.layouts:
                path = self.folder.path / layout_name(output.name, layout)
                self._write_adapter(path, layout, output.dtype, step)
                adapters.append(path)
        else:
            adapters.append(self.folder.checkpoints / f"{step:06d}" / "adapter.safetensors")
        record: dict[str, Any] = {"status": status, "step": step}
        if status == "cancelled" and isinstance(self._observer, Stoppable):
            record["stopped_by"] = self._observer.stopped_by
        self.folder.update_record(**record)
        losses = [result.loss for result in self._metrics.steps]
        result = RunResult(
            self.folder.path, status, step, tuple(adapters), tuple(self._pictures), tuple(losses)
        )
        self._observer.notify(RunFinished(result))
        return result

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
