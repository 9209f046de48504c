"""Run files, runs and caches on disk, as the graph writes, reads and watches them."""

from __future__ import annotations

import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from ...trainer_core.config import BaseAdapter, DatasetSection, RunConfig
from ...trainer_core.config.reading import dump_config
from ...trainer_core.errors import InputError
from ...trainer_core.filesystem.storage import atomic_write, storage_error, write_text
from ...trainer_core.filesystem.text_files import read_object
from ...trainer_core.training.checkpoints.run_names import CHECKPOINTS, METRICS, RECORD
from ..host.folders import clear_leftovers
from .choices import RunHandle

_START = "start.safetensors"
_BASE_ADAPTERS = "base-adapters"
_ADAPTER = "adapter.safetensors"
_WORDS = {0: "the newest", -1: "the best"}

BEST = -1
"""What Load Run is told to get the checkpoint that is best on held-out images."""


def save_run_file(config: RunConfig, *, copy_cache: bool) -> Path:
    """Write a run file for the command line: ``<output>/<name>/run-file/run.yaml``.

    An older one is replaced. With `copy_cache` the encoded samples, the adapters of the base and
    the file that the adapter starts from are copied beside it, and named relatively.

    Raises:
        InputError: When the file that the adapter starts from, or one of the base's, is absent.
        StorageError: When it cannot be written.
    """
    from ...trainer_core.data.cache.cache_file import cache_folders

    folder = Path(config.output.dir) / config.output.name / "run-file"
    clear_leftovers(folder, *cache_folders(folder / "cache"))
    if copy_cache and config.cache.manifest:
        manifest = _copied_cache(Path(config.cache.manifest), folder / "cache")
        names = {"manifest": manifest.relative_to(folder).as_posix(), "dir": None}
        changed = {
            "cache": names,
            "base": {"adapters": _copied_adapters(config.base.adapters, folder)},
            "adapter": {"start_from": _copied_start(config.adapter.start_from, folder)},
            # On another machine these folders do not exist; the finished cache needs neither.
            "dataset": _without_places(config.dataset),
            "output": {"dir": "output"},
        }
        sections = {
            name: getattr(config, name).model_copy(update=values)
            for name, values in changed.items()
        }
        config = config.model_copy(update=sections)
    path = folder / "run.yaml"
    write_text(path, dump_config(config))
    return path


def _without_places(dataset: DatasetSection) -> dict[str, Any]:
    """The folders of a dataset by their names alone: what else they say is still trained."""
    folders = [
        each.model_copy(update={"path": PurePath(each.path).name}) for each in dataset.folders
    ]
    ordinary = dataset.regularization
    named = ordinary.model_copy(update={"path": PurePath(ordinary.path).name})
    return {"path": "", "folders": folders, "regularization": named}


def load_run(folder: Path, checkpoint: int) -> tuple[RunHandle, list[float]]:
    """Read a run.

    Args:
        checkpoint: Step of a checkpoint; 0 takes the finished adapter or the newest checkpoint,
            -1 the one that is best on held-out images.

    Returns:
        The run, and its losses up to there.

    Raises:
        InputError: When its record is damaged, when it has no such checkpoint or none at all, or
            when its adapter is in another layout alone.
    """
    from ...trainer_core.training.checkpoints.checkpoint import checkpoint_folders
    from ...trainer_core.training.checkpoints.checkpoint_search import best_step
    from ...trainer_core.training.metrics.metrics_file import read_metrics

    name = f"{folder.parent.name}/{folder.name}"
    status, end = _record(folder / RECORD, name)
    found = checkpoint_folders(folder / CHECKPOINTS)
    saved = {int(path.name): path for path in found if (path / _ADAPTER).is_file()}
    best = best_step(folder)
    if checkpoint == BEST and best is not None:
        checkpoint = best
    finished = sorted(folder.glob("*.safetensors"), key=lambda path: len(path.name))
    whole = not checkpoint and bool(finished) and status == "done"
    step = end if whole else checkpoint or max(saved, default=0)
    # A checkpoint's adapter is in ComfyUI's layout, if that holds it; the finished ones are as was
    # asked for.
    kept = [saved[step] / _ADAPTER] if step in saved else []
    files = [*(finished if whole else []), *kept]
    adapter = _for_comfyui(files)
    if adapter is None and files:
        raise InputError(
            f"run: {name} has its adapter in another layout alone ({files[0].name})",
            "a run with an adapter in layout comfyui, or with a checkpoint of its last step",
            "Copy the file to the loras folder, and load it with Convert Adapter.",
        )
    if adapter is None:
        raise InputError(
            f"checkpoint: {_WORDS.get(checkpoint, checkpoint)} of {name}",
            "one of the steps " + (_marked(sorted(saved), best) or "(it has none)"),
            "Choose a step that was saved, or 0 for the end of a finished run. Only a run with "
            "held-out images has a best one.",
        )
    steps = read_metrics(folder / METRICS)
    losses = [each.loss for each in steps if not each.skipped and each.step <= step]
    return RunHandle(folder, adapter, step), losses


def _marked(steps: Sequence[int], best: int | None) -> str:
    """Steps in words, the best one marked."""
    return ", ".join(f"{step} (best)" if step == best else str(step) for step in steps)


def _record(path: Path, name: str) -> tuple[str, int]:
    """Status and steps of a run."""

    def refuse(reason: str) -> InputError:
        return InputError(
            f"run: run.json of {name} is damaged ({reason})",
            "the record that the trainer keeps of every run",
            "Choose another run. The adapters of this one are still in its folder: copy one to the "
            "loras folder, and load it from there.",
        )

    record = read_object(path, refuse)
    try:
        return str(record["status"]), int(record.get("step", 0))
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise refuse(f"{type(error).__name__}: {error}") from error


def _for_comfyui(files: Sequence[Path]) -> Path | None:
    from ...trainer_core.adapter_files.read.adapter_file import open_file

    for path in files:
        with open_file(path) as file:
            if file.layout == "comfyui":
                return path
    return None


def _copied_start(file: str | None, folder: Path) -> str | None:
    """Copy the file that the adapter starts from, and name the copy relatively."""
    if file is None:
        return None
    source = Path(file)
    if not source.is_file():
        raise InputError(
            f"adapter.start_from: there is no file {source}",
            "an adapter file (.safetensors), to be copied beside the run file",
            "Choose another adapter to start from, or none.",
        )
    atomic_write(folder / _START, lambda target: shutil.copyfile(source, target))
    return _START


def _copied_adapters(adapters: Sequence[BaseAdapter], folder: Path) -> list[BaseAdapter]:
    """Copy the adapters of the base, each into a folder of its own, and name them relatively."""
    from ...trainer_core.adapter_files.read.adapter_file import adapter_files

    copied: list[BaseAdapter] = []
    for number, each in enumerate(adapters):
        source, name = Path(each.path), f"{_BASE_ADAPTERS}/{number}"
        # PEFT's folder is named as a whole, because its weights lack their scale.
        named = name if source.is_dir() else f"{name}/{source.name}"
        files = adapter_files(source)
        if not all(file.is_file() for file in files):
            raise InputError(
                f"base.adapters.{number}: there is no file {source}",
                "an adapter file (.safetensors), to be copied beside the run file",
                "Choose another adapter on Load Training Base, or none.",
            )
        for file in files:
            atomic_write(folder / name / file.name, partial(shutil.copyfile, file))
        copied.append(each.model_copy(update={"path": named}))
    return copied


def _copied_cache(manifest: Path, target: Path) -> Path:
    from ...trainer_core.training.prepare.cache_manifest import read_manifest

    files = [manifest, *(entry.path for entry in read_manifest(manifest).entries())]
    try:
        for file in files:
            copy = target / file.relative_to(manifest.parent)
            if not copy.is_file() or copy.stat().st_size != file.stat().st_size:
                atomic_write(copy, partial(shutil.copyfile, file))
    except OSError as error:
        raise storage_error(target, error) from error
    return target / manifest.name


def kept_workflow(run: str) -> tuple[Any, int]:
    """What the browser is told when it asks for a run's workflow, and the HTTP status.

    The file as it lies on disk with 200: the workflow, or else the prompt. JSON values with a
    ``reason`` and 404 where there is no such run, it has none, or it cannot be read. The run, one
    of `run_names`, may come from anybody.
    """
    from ..host import comfy_host
    from ..host.served_files import json_file

    try:
        return json_file(_workflow_bytes(comfy_host.run_path(run), run)), 200
    except InputError as error:
        return {"reason": error.found}, 404
    except OSError as error:
        reason = f"the workflow of this run cannot be read ({error.strerror or error})"
        return {"reason": reason}, 404


def _workflow_bytes(folder: Path, run: str) -> bytes:
    from ...trainer_core.adapter_files.metadata import LARGEST_KEPT, WORKFLOW_KEYS

    for key in WORKFLOW_KEYS:
        path = folder / f"{key}.json"
        if not path.is_file():
            continue
        if path.stat().st_size > LARGEST_KEPT + 1:
            raise InputError(
                f"{path.name} of {run} is too large",
                f"at most {LARGEST_KEPT // 2**20} MiB",
                "Open it by hand, if you trust it.",
            )
        return path.read_bytes()
    raise InputError(
        f"{run} has no workflow", "a run that was started in ComfyUI", "Choose another run."
    )


class OutputWatch:
    """Counts how often cached files went missing; used by the prompt's thread and the server's.

    ComfyUI keeps the output of a node as long as its inputs stay, and does not know of the files
    behind it. A count in a node's fingerprint lets it make them again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Path, set[str]] = {}
        self._missing = 0

    def missing_count(self, folder: Path) -> int:
        """How often files that were there before had gone at a later look."""
        from ...trainer_core.data.cache.cache_file import cache_folders

        now = {
            f"{kind.name}/{path.name}"
            for kind in cache_folders(folder)[1:]
            for path in kind.glob("*.safetensors")
        }
        with self._lock:
            self._missing += bool(self._seen.get(folder, set()) - now)
            self._seen[folder] = now
            return self._missing


class AdapterWatch:
    """Counts how often an adapter that a train node handed on was lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handed: dict[tuple[str, str | None], Path] = {}
        self._missing: dict[tuple[str, str | None], int] = {}

    def hand_on(self, node_id: str, name: str | None, file: Path) -> None:
        """Watch an adapter of a train node's run; the one that it handed on before is forgotten."""
        with self._lock:
            # Before the node runs, a linked name is not known.
            self._handed[node_id, name] = self._handed[node_id, None] = file

    def missing_count(self, node_id: str, name: str | None) -> int:
        """How often the adapter had gone at a look; the name is None where it is not known."""
        key = node_id, name
        with self._lock:
            file = self._handed.get(key)
            if file is not None and not file.is_file():
                del self._handed[key]
                self._missing[key] = self._missing.get(key, 0) + 1
            return self._missing.get(key, 0)


class GoingOn(NamedTuple):
    """What a button of the panel has promised of a node's next run.

    Attributes:
        folder: The version folder that it goes on in, or the checkpoint; None leaves that to the
            settings.
        seed: The run's own, which ComfyUI may have changed since.
        steps: How long it is from now on; 0 as it was.
    """

    folder: Path | None = None
    seed: int | None = None
    steps: int = 0

    def applied(self, config: RunConfig) -> RunConfig:
        """The run file that keeps the promise."""
        from ...trainer_core.config.defaults import with_length

        if self.folder is not None:
            seed = config.seed if self.seed is None else self.seed
            config = config.model_copy(update={"resume": str(self.folder), "seed": seed})
        return with_length(config, self.steps) if self.steps else config


class ContinueCount:
    """Counts how often it was asked that a train node's finished or stopped run goes on.

    ComfyUI would hand on what the node gave the last time; the count is in its fingerprint.
    """

    _MOST = 1000
    _PLACE = "adapter_trainer"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: OrderedDict[str, int] = OrderedDict()
        self._going: dict[str, GoingOn] = {}
        self._queued: OrderedDict[str, GoingOn] = OrderedDict()

    def note(self, node_id: str, going: GoingOn) -> None:
        """Let the node's next run go on."""
        with self._lock:
            self._asked[node_id] = self._asked.pop(node_id, 0) + 1
            self._going[node_id] = going
            while len(self._asked) > self._MOST:
                self._going.pop(self._asked.popitem(last=False)[0], None)

    def forget(self, node_id: str) -> None:
        """Let nothing of what was asked of a node go on."""
        with self._lock:
            self._going.pop(node_id, None)

    def bind(self, queued: Any) -> None:
        """Tie what was asked to the prompt that is queued next, so that it ends with that one.

        What is sent to ComfyUI's queue gets a name for each promise that it keeps.
        """
        prompt = queued.get("prompt") if isinstance(queued, dict) else None
        with self._lock:
            going, self._going = self._going, {}
            there = prompt if isinstance(prompt, Mapping) else {}
            kept = {node: each for node, each in going.items() if node in there}
            names = {node: os.urandom(8).hex() for node in kept}
            self._queued.update((names[node], each) for node, each in kept.items())
            while len(self._queued) > self._MOST:
                self._queued.popitem(last=False)
        if names:
            extra = queued.get("extra_data")
            queued["extra_data"] = {
                **(extra if isinstance(extra, dict) else {}),
                self._PLACE: names,
            }

    def take(self, node_id: str, extra: Any) -> GoingOn:
        """What a node's run is to go on with, by the prompt's ``extra_data``; asked for once."""
        with self._lock:
            return self._queued.pop(self._promise(node_id, extra), GoingOn())

    def promised(self, node_id: str, extra: Any) -> GoingOn:
        """What `take` will give."""
        with self._lock:
            return self._queued.get(self._promise(node_id, extra), GoingOn())

    def _promise(self, node_id: str, extra: Any) -> str:
        names = extra.get(self._PLACE) if isinstance(extra, Mapping) else None
        return str(names.get(node_id) if isinstance(names, Mapping) else None)

    def count(self, node_id: str) -> int:
        """How often it was asked."""
        with self._lock:
            return self._asked.get(node_id, 0)


def train_stamp(node_id: str, name: str | None) -> str:
    """Changes when a train node has to run although its inputs are the same."""
    return f"{ADAPTERS.missing_count(node_id, name)}/{CONTINUED.count(node_id)}"


WATCH = OutputWatch()
ADAPTERS = AdapterWatch()
CONTINUED = ContinueCount()
