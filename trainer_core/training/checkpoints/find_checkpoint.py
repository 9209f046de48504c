"""Which checkpoint `resume` or ``best`` names, and how a run that broke goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...config import RunConfig
from ...config.run import names_step
from ...errors import ConfigError, InputError
from .checkpoint import checkpoint_folders, is_checkpoint
from .run_folder import is_live, is_version, read_record, versions


def find_checkpoint(config: RunConfig, precision: str | None = None) -> Path | None:
    """Find the checkpoint folder that ``resume`` means.

    Args:
        precision: The resolved precision. ``latest`` and ``auto`` pass over a state that is known
            to lead to a loss that is not finite in it; in another one it may not. Unset: they pass
            over it in any.

    Returns:
        The folder, or None for a new run.

    Raises:
        ConfigError: When ``latest``, ``best``, a step or a path finds no checkpoint, or one that
            lies in no run's folder, where the run would go on.
    """
    if config.resume == "none":
        return None
    root = Path(config.output.dir) / config.output.name
    if config.resume == "best":
        return best_checkpoint(root)
    if config.resume == "auto":
        return next(filter(None, idle_checkpoints(root, precision)), None)
    if config.resume != "latest" and not names_step(config.resume):
        return _named_checkpoint(Path(config.resume), precision)
    for version in reversed(versions(root)):
        found = checkpoint_folders(version / "checkpoints")
        if config.resume == "latest" and found:
            return (_promising(found, precision) or found)[-1]
        for path in found:
            if config.resume != "latest" and int(path.name) == int(config.resume):
                return path
    what = "" if config.resume == "latest" else f" of step {config.resume}"
    raise ConfigError(
        f"resume: {config.resume}, but {root} has no checkpoint{what}",
        f"a run of this name with a checkpoint{what}",
        "Start it with resume=none, or check output.dir and output.name.",
    )


def idle_checkpoints(root: Path, precision: str | None) -> Iterator[Path | None]:
    """The newest promising checkpoint of each version that has any and that nobody works in.

    Args:
        root: ``<output.dir>/<output.name>``.

    Yields:
        Newest version first; None for one whose checkpoints all lead nowhere.
    """
    for version in reversed(versions(root)):
        found = checkpoint_folders(version / "checkpoints")
        if found and not is_live(version):
            yield next(reversed(_promising(found, precision)), None)


def _promising(found: list[Path], precision: str | None) -> list[Path]:
    return [path for path in found if not leads_to_non_finite(path, precision)]


def best_checkpoint(root: Path) -> Path:
    """Find the checkpoint of a run with the lowest loss on held-out images.

    Args:
        root: ``<output.dir>/<output.name>``; of its versions the newest counts that has one.

    Raises:
        ConfigError: When none has.
    """
    for version in reversed(versions(root)):
        step = best_step(version)
        if step is not None:
            return version / "checkpoints" / f"{step:06d}"
    raise ConfigError(
        f"best: no run in {root} has a best checkpoint",
        "a run that measured the loss on held-out images (dataset.validation.share) and has a "
        "checkpoint since",
        "Name a step or latest instead, or train with held-out images.",
    )


def best_step(version: Path) -> int | None:
    """The step of a run's best checkpoint, if that is on the disk.

    Returns:
        None where nothing was held out, the record is damaged, or the checkpoint is gone.
    """
    try:
        step = int(read_record(version)[BEST]["step"])
    except (InputError, ValueError, LookupError, TypeError, OverflowError):
        return None
    return step if is_checkpoint(version / "checkpoints" / f"{step:06d}") else None


def _named_checkpoint(path: Path, precision: str | None) -> Path:
    # Absolute, because the run's folder is named by going up from the checkpoint's.
    path = path.absolute()
    found: list[Path] = []
    if is_checkpoint(path) or (path / "state.json").is_file():
        found = [path]
    elif path.is_dir():
        found = checkpoint_folders(path / "checkpoints") or checkpoint_folders(path)
        found = _promising(found, precision) or found
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
        "'none', 'auto', 'latest', 'best', the step of a checkpoint, a checkpoint's folder or a "
        "run's version folder",
        "Look into <output.dir>/<output.name>/v*/checkpoints for the folders there are.",
    )


BEST = "best"
"""Where ``run.json`` keeps step and loss of the checkpoint that is best on held-out images."""

RECORD = "non_finite"
"""Where ``run.json`` keeps the step that broke, and the precision that it broke in.

Noise, samples and noise levels of a step are the same in every attempt. So the state before the
step that broke leads there again, whatever the learning rate is now; an earlier one may not.
"""


def broken_step(step: int, precision: str, first: int) -> dict[str, Any]:
    """The step that broke, as ``run.json`` keeps it.

    Args:
        step: At which the run ended.
        first: Of the steps in a row that were not finite; those before `step` were left out.
    """
    row = {} if first == step else {"first": first}
    return {"step": step, **row, "precision": precision}


def leads_to_non_finite(checkpoint: Path, precision: str | None) -> bool:
    """Whether a checkpoint is known to lead to a number that is not finite in its next step.

    Args:
        precision: What the run would compute in; None for any.
    """
    try:
        broken = read_record(checkpoint.parent.parent)[RECORD]
        step, found = int(broken["step"]), str(broken["precision"])
        # Steps that were left out have changed nothing.
        first = int(broken.get("first", step))
    except (InputError, ValueError, LookupError, TypeError, OverflowError, AttributeError):
        return False
    return first - 1 <= int(checkpoint.name) < step and precision in {None, found}


def resume_advice(
    checkpoints: Path,
    step: int,
    resumed_from: int,
    learning_rate: float,
    precision: str,
    first: int,
) -> str:
    """Say how a run goes on that broke.

    Args:
        resumed_from: The step that this attempt went on from; 0 when it began from the start.
        learning_rate: The highest of the run.
        first: Of the steps in a row that were not finite.
    """
    saved = [int(path.name) for path in checkpoint_folders(checkpoints)]
    fine = [each for each in saved if each < first - 1]
    lower = f"training.optimizer.learning_rate={learning_rate / 10:g}"
    if newer := [each for each in fine if each > resumed_from or not resumed_from]:
        text = (
            f"Go on from the checkpoint of step {newer[-1]} with a lower learning rate: start "
            f"again with resume=latest {lower} (in ComfyUI: lower learning_rate and run the graph "
            "again)."
        )
    elif earlier := [each for each in fine if each < resumed_from]:
        place = f"{checkpoints.parent.parent.name}/{checkpoints.parent.name}/{earlier[-1]:06d}"
        text = (
            f"The run broke soon after step {resumed_from}, which it went on from. Go on from step "
            f"{earlier[-1]} with a lower learning rate: start again with resume={earlier[-1]} "
            f"{lower} (in ComfyUI: lower learning_rate, choose {place} as resume_from and run the "
            "graph again)."
        )
    else:
        text = (
            f"Start again with a lower learning rate: resume=none {lower} (in ComfyUI: lower "
            "learning_rate, switch resume off and run the graph again)."
        )
    if precision != "fp32" and step - 1 in saved:
        text += (
            f" The state after step {step - 1} is saved as well: resume=latest "
            f"training.precision=fp32 tries step {step} from there (in ComfyUI: precision of Load "
            "Training Base)."
        )
    return text
