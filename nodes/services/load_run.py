"""Runs on disk as a graph reads them: the adapter of one, and its workflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...trainer_core.errors import InputError
from ...trainer_core.filesystem.text_files import read_object
from ...trainer_core.training.checkpoints.run_names import CHECKPOINTS, METRICS, RECORD
from .socket_values import RunHandle

_ADAPTER = "adapter.safetensors"
_WORDS = {0: "the newest", -1: "the best"}
BEST = -1
"""What Load Run is told to get the checkpoint that is best on held-out images."""


def load_run(folder: Path, checkpoint: int) -> tuple[RunHandle, list[float]]:
    """Read a run and its losses, up to the step of a checkpoint.

    0 takes the finished adapter or the newest checkpoint, -1 the one that is best on held-out
    images.

    Raises:
        InputError: When its record is damaged, when it has no such checkpoint or none at all, or
            when its adapter is in another layout alone.
    """
    from ...trainer_core.training.checkpoints.checkpoint import checkpoint_folders
    from ...trainer_core.training.checkpoints.find_checkpoint import best_step
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
    from ...trainer_core.adapter_files.read.read_adapter import open_file

    for path in files:
        with open_file(path) as file:
            if file.layout == "comfyui":
                return path
    return None


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
