"""Run files and runs on disk, as the graph writes and reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ..trainer_core.config import RunConfig
from ..trainer_core.config.reading import dump_config
from ..trainer_core.errors import InputError
from ..trainer_core.storage import storage_error, write_text
from .sockets import RunHandle


def save_run_file(config: RunConfig, *, copy_cache: bool) -> Path:
    """Write a run file for the command line.

    Args:
        config: What would be trained.
        copy_cache: Whether to copy the encoded samples beside it; it then names them relatively.

    Returns:
        ``<output>/<name>/run-file/run.yaml``; an older one is replaced.

    Raises:
        StorageError: When it cannot be written.
    """
    folder = Path(config.output.dir) / config.output.name / "run-file"
    values = config
    if copy_cache and config.cache.manifest:
        manifest = _copied_cache(Path(config.cache.manifest), folder / "cache")
        cache = config.cache.model_copy(
            update={"manifest": manifest.relative_to(folder).as_posix(), "dir": None}
        )
        # On another machine these folders do not exist; the finished cache needs neither.
        dataset = config.dataset.model_copy(update={"path": ""})
        output = config.output.model_copy(update={"dir": "output"})
        values = config.model_copy(update={"cache": cache, "dataset": dataset, "output": output})
    path = folder / "run.yaml"
    write_text(path, dump_config(values))
    return path


def load_run(folder: Path, checkpoint: int) -> tuple[RunHandle, list[float]]:
    """Read a run.

    Args:
        folder: Its version folder.
        checkpoint: Step of a checkpoint; 0 takes the finished adapter or the newest checkpoint.

    Returns:
        The run, and its losses up to there.

    Raises:
        InputError: When it has no such checkpoint, or none at all.
    """
    from ..trainer_core.training.checkpoint import checkpoint_folders
    from ..trainer_core.training.metrics import read_metrics

    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    saved = {int(path.name): path for path in checkpoint_folders(folder / "checkpoints")}
    finished = sorted(folder.glob("*.safetensors"), key=lambda path: len(path.name))
    if not checkpoint and finished and record["status"] == "done":
        adapter, step = finished[0], int(record["step"])
    else:
        step = checkpoint or max(saved, default=0)
        if step not in saved:
            raise InputError(
                f"checkpoint: {checkpoint or 'the newest'} of {folder.parent.name}/{folder.name}",
                "one of the steps " + (", ".join(map(str, sorted(saved))) or "(it has none)"),
                "Choose a step that was saved, or 0 for the end of a finished run.",
            )
        adapter = saved[step] / "adapter.safetensors"
    losses = [result.loss for result in read_metrics(folder / "metrics.jsonl")]
    return RunHandle(folder, adapter, str(record["status"]), step), losses[:step]


def _copied_cache(manifest: Path, target: Path) -> Path:
    listed = json.loads(manifest.read_text(encoding="utf-8"))
    files = [manifest.relative_to(manifest.parent)]
    for sample in listed["samples"]:
        files += [Path("latents", f"{sample['latents']}.safetensors")]
        files += [Path("latents", f"{each['latents']}.safetensors") for each in sample["controls"]]
        files += [Path("text", f"{sample[part]}.safetensors") for part in ("text", "empty_text")]
    files += [Path("prompts", f"{prompt['key']}.safetensors") for prompt in listed["prompts"]]
    try:
        for file in files:
            copy = target / file
            if not copy.is_file() or copy.stat().st_size != (manifest.parent / file).stat().st_size:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(manifest.parent / file, copy)
    except OSError as error:
        raise storage_error(target, error) from error
    return target / manifest.name
