"""Writes what a graph would train as a run file, with what it needs copied beside it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from ...trainer_core.config import BaseAdapter, DatasetSection, RunConfig
from ...trainer_core.config.read_run_file import dump_config
from ...trainer_core.errors import InputError
from ...trainer_core.filesystem.storage import atomic_write, storage_error, write_text
from ..host.folders import clear_leftovers

_START = "start.safetensors"
_BASE_ADAPTERS = "base-adapters"


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
    from ...trainer_core.adapter_files.read.read_adapter import adapter_files

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
