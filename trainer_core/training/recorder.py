"""All that a run writes: metrics, previews, checkpoints and, at the end, the adapter.

``metrics.jsonl`` is for programs. TensorBoard's events, for people, repeat what it says; so
whatever is wrong with TensorBoard is told once, and the run goes on without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ..errors import NonFiniteError, RunError
from ..filesystem.storage import atomic_write, storage_error
from ..filesystem.text_files import parse_json, read_lines
from ..requirements import installed_versions
from ..types import RunResult, StepResult
from .checkpoint import (
    RECORD,
    broken_step,
    drop_later_checkpoints,
    prune_checkpoints,
    save_checkpoint,
    way_on,
)
from .encode_dataset import Prepared
from .observer import (
    TENSORBOARD_ABSENT,
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
from .run_folder import RunFolder
from .state import TrainState

if TYPE_CHECKING:
    from types import TracebackType


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
        self._metrics.write(result)
        self._observer.notify(StepDone(result, run_length(self._config)))

    def measured(self, step: int, loss: float) -> None:
        """Tell of the loss on held-out images; that of a step is written down with it."""
        if step == 0:
            self._metrics.write_begin(loss)
        self._observer.notify(ValidationDone(step, loss))

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
        # Whoever has named a checkpoint to go on from may want to go on from it again.
        named = self._config.resume not in {"none", "auto", "latest"}
        keep = self._config.training.keep_checkpoints
        dropped = prune_checkpoints(self.folder.checkpoints, keep, self._done if named else None)
        self._saved(step, folder, dropped)

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
        atomic_write(path, lambda target: image.save(target, format="PNG"))
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
            self.folder.path, status, step, tuple(adapters), tuple(self._images), tuple(losses)
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


class MetricsWriter:
    """Appends each step to a run's ``metrics.jsonl`` and, where it works, to TensorBoard.

    Args:
        path: The file; lines of later steps than `done` are cut off first.
        done: Steps that the run has made.
        warn: Told in one line when TensorBoard cannot be used.

    Raises:
        StorageError: When the file cannot be written.
    """

    def __init__(self, path: Path, done: int, warn: Callable[[str], None]) -> None:
        self._path = path
        self.steps = _keep_steps(path, done)
        try:
            self._file = path.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise storage_error(path, error) from error
        self._tensorboard = TensorBoard(path.parent, done, warn)

    def write(self, result: StepResult) -> None:
        """Append one step.

        Args:
            result: The step; every number is finite.

        Raises:
            StorageError: When the disk is full.
        """
        self._append(_record(result))
        self.steps.append(result)
        self._tensorboard.write(result)

    def write_begin(self, loss: float) -> None:
        """Append the loss on held-out images before the first step, as that of a step 0."""
        self._append({"step": 0, "validation_loss": loss})
        self._tensorboard.write_validation(0, loss)

    def _append(self, record: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise storage_error(self._path, error) from error

    def write_image(self, step: int, index: int, pixels: Tensor) -> None:
        """Add a preview image to TensorBoard.

        Args:
            step: Steps made.
            index: The prompt's index.
            pixels: `[3 or 4, H, W]` in [-1, 1].
        """
        self._tensorboard.write_image(step, index, pixels)

    def close(self) -> None:
        """Close both; raises nothing, because every whole line is on the disk already."""
        # What a full disk refused is still pending, and would be refused again.
        with contextlib.suppress(OSError):
            self._file.close()
        self._tensorboard.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[StepResult]:
    """Read whole lines; what a crash left of the last one is ignored.

    Args:
        path: A ``metrics.jsonl``, which may be absent.

    Returns:
        The steps in order; what was measured before the first one is none.
    """
    return [step for step in _read_records(path) if isinstance(step, StepResult)]


def _read_records(path: Path) -> list[StepResult | Mapping[str, Any]]:
    if not path.is_file():
        return []
    records: list[StepResult | Mapping[str, Any]] = []
    for line in read_lines(path):
        try:
            record = parse_json(line)
            before = record.get("step") == 0 and isinstance(record["validation_loss"], float)
            records.append(record if before else StepResult(**record))
        except (ValueError, TypeError, KeyError, AttributeError):
            break
    return records


def _record(step: StepResult) -> dict[str, Any]:
    """One line; what was not measured is not in it."""
    return {name: each for name, each in dataclasses.asdict(step).items() if each is not None}


def _keep_steps(path: Path, done: int) -> list[StepResult]:
    if not path.exists():
        return []
    records = _read_records(path)
    kept = [each for each in records if isinstance(each, StepResult) and each.step <= done]
    # A run that begins anew measures anew.
    before = [each for each in records if not isinstance(each, StepResult)] if done else []
    lines = [*before[:1], *map(_record, kept)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    atomic_write(path, lambda target: _write(target, text))
    return kept


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


class TensorBoard:
    """Writes TensorBoard events where it is installed and works.

    Args:
        folder: Where the event file goes.
        done: Steps that the run has made; events of later steps are hidden.
        warn: Told in one line why nothing is written, or no more.
    """

    def __init__(self, folder: Path, done: int, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._writer: Any = None
        if importlib.util.find_spec("tensorboard") is None:
            warn(TENSORBOARD_ABSENT)
            return

        def load() -> None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

        self._try(load)

    def write(self, result: StepResult) -> None:
        """Add the numbers of a step."""
        for name in ("loss", "learning_rate", "grad_norm", "sigma_mean", "step_seconds"):
            self._add("add_scalar", f"training/{name}", getattr(result, name), result.step)
        if result.validation_loss is not None:
            self.write_validation(result.step, result.validation_loss)

    def write_validation(self, step: int, loss: float) -> None:
        """Add the loss on held-out images."""
        self._add("add_scalar", "validation/loss", loss, step)

    def write_image(self, step: int, index: int, pixels: Tensor) -> None:
        """Add a preview image.

        Args:
            step: Steps made.
            index: The prompt's index.
            pixels: `[3 or 4, H, W]` in [-1, 1].
        """
        self._add("add_image", f"preview/{index}", (pixels.clamp(-1, 1) + 1) / 2, step)

    def close(self) -> None:
        """Write what is pending."""
        if self._writer is not None:
            self._try(self._writer.close)

    def _add(self, what: str, *values: Any) -> None:
        if self._writer is not None:
            self._try(lambda: getattr(self._writer, what)(*values))

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        # A broken installation raises anything at all, such as protobuf's TypeError.
        except Exception as error:  # noqa: BLE001
            self._writer = None
            reason = next(iter(str(error).splitlines()), "")
            self._warn(
                f"TensorBoard does not work ({type(error).__name__}: {reason}), so only "
                "metrics.jsonl is written."
            )
