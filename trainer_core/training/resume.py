"""Which checkpoint a run goes on from, and whether its settings still fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..config.length import run_length
from ..errors import ConfigError
from .checkpoint import Checkpoint, checkpoint_folders, is_checkpoint, read_checkpoint
from .run_folder import is_live, is_version, versions

FREE_SECTIONS = frozenset({"resume", "output", "preview", "memory", "cache", "config_version"})
"""Sections that may change between a run and its resumption."""

FREE_SETTINGS = frozenset(
    {
        "base.path",
        "base.encoders",
        "adapter.start_from",
        "dataset.path",
        "dataset.regularization.path",
        "dataset.unreadable",
        "dataset.missing_caption",
        "dataset.missing_control",
        "dataset.missing_image",
        "training.steps",
        "training.checkpoint_every",
        "training.keep_checkpoints",
    }
)
"""Settings that may change too. Base, dataset and the file that an adapter starts from are compared
by content instead of by path."""

START = "adapter.start_from (content)"
"""Where a checkpoint's settings keep the identity of the file that the adapter started from."""


def find_checkpoint(config: RunConfig) -> Path | None:
    """Find the checkpoint folder that ``resume`` means.

    Args:
        config: The run file.

    Returns:
        The folder, or None for a new run.

    Raises:
        ConfigError: When ``latest`` or a path finds no checkpoint, or one that lies in no run's
            folder, where the run would go on.
    """
    if config.resume == "none":
        return None
    root = Path(config.output.dir) / config.output.name
    if config.resume in {"latest", "auto"}:
        for version in reversed(versions(root)):
            found = checkpoint_folders(version / "checkpoints")
            if found and not (config.resume == "auto" and is_live(version)):
                return found[-1]
        if config.resume == "auto":
            return None
        raise ConfigError(
            f"resume: latest, but {root} has no checkpoint",
            "a run of this name with a checkpoint",
            "Start it with resume=none, or check output.dir and output.name.",
        )
    return _named_checkpoint(Path(config.resume))


def deciding_settings(
    config: RunConfig, precision: str, base: str, dataset: str, start: str | None = None
) -> dict[str, Any]:
    """List the settings that decide a run's weights, by YAML path.

    Args:
        config: The run file.
        precision: The resolved precision.
        base: Identity of the base's weights.
        dataset: Identity of the dataset's content.
        start: Identity of the file that the adapter starts from; None without one.

    Returns:
        JSON values by path.
    """
    flat = _flatten(config.model_dump(mode="json"), "")
    kept = {
        path: value
        for path, value in flat.items()
        if path.split(".")[0] not in FREE_SECTIONS and path not in FREE_SETTINGS
    }
    kept["training.precision"] = precision
    return kept | {"base (content)": base, "dataset (content)": dataset, START: start}


def refuse_changes(checkpoint: Checkpoint, settings: Mapping[str, Any], config: RunConfig) -> None:
    """Compare a checkpoint's settings with the run's.

    Args:
        checkpoint: What the run goes on from.
        settings: What `deciding_settings` gave for the run.
        config: The run file.

    Raises:
        ConfigError: When a setting that decides the weights differs, or the run is shorter than
            what the checkpoint has made.
    """
    changed = [
        f"{path} was {checkpoint.settings.get(path)!r} and is {settings.get(path)!r}"
        for path in sorted(checkpoint.settings.keys() | settings.keys())
        if checkpoint.settings.get(path) != settings.get(path)
    ]
    if changed:
        raise ConfigError(
            f"resume: another configuration than the checkpoint's: {'; '.join(changed)}",
            "the settings that the checkpoint was made with",
            "Undo the change, or start a new run with resume=none.",
        )
    steps = run_length(config)
    if checkpoint.step > steps:
        raise ConfigError(
            f"training.steps: {steps}, but the checkpoint has made {checkpoint.step} steps",
            f"at least {checkpoint.step}",
            "Raise training.steps, or name an earlier checkpoint with resume=PATH.",
        )


def _named_checkpoint(path: Path) -> Path:
    # Absolute, because the run's folder is named by going up from the checkpoint's.
    path = path.absolute()
    found: list[Path] = []
    if is_checkpoint(path) or (path / "state.json").is_file():
        found = [path]
    elif path.is_dir():
        found = checkpoint_folders(path / "checkpoints") or checkpoint_folders(path)
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
        "'none', 'auto', 'latest', a checkpoint's folder or a run's version folder",
        "Look into <output.dir>/<output.name>/v*/checkpoints for the folders there are.",
    )


def _flatten(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        # A pattern table is one setting: its keys are regular expressions, not names.
        if isinstance(value, dict) and not path.endswith("_pattern"):
            flat |= _flatten(value, f"{path}.")
        else:
            flat[path] = value
    return flat


__all__ = ["deciding_settings", "find_checkpoint", "read_checkpoint", "refuse_changes"]
