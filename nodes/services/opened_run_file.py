"""A run file that somebody dropped or chose in the browser, as what nodes can be told of it.

It may come from a stranger. Nothing that it names is opened: a path becomes the name that a node
offers for it, where it lies in a folder that ComfyUI allows, and is else left empty and told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...trainer_core.config import RunConfig
from ...trainer_core.config.run import walk_settings
from ...trainer_core.config.section import section_of
from ...trainer_core.errors import InputError
from ..host import comfy_host

_NONE = "none"
OWN = "Adapter Trainer"


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run file.

    Attributes:
        program: Whose it is.
        values: Every setting, by YAML path.
        changed: Settings that differ from their defaults.
        base: As Load Training Base names it; empty where it is elsewhere.
        family: The same.
        base_adapters: Lines for its input.
        dataset: As Dataset From Folder names it; empty where it is elsewhere.
        regularization: The same.
        start_from: As Adapter Config names it.
        notes: What was left empty, or has no counterpart.
    """

    program: str
    values: Mapping[str, Any]
    changed: Sequence[str]
    base: str
    family: str
    base_adapters: str
    dataset: str
    regularization: str
    start_from: str
    notes: Sequence[str]


def open_run_file(name: str, text: object) -> OpenedRun:
    """Read a run file's text.

    Args:
        name: Of the file; its extension says the format.
        text: What it holds.

    Raises:
        InputError: When it is none that is read, or its settings contradict each other.
    """
    if not isinstance(text, str):
        raise InputError("no text of a file", "name and text of a run file", "Choose a file.")
    name = Path(name.replace("\\", "/")).name or "run.yaml"
    program, config, notes = _read(name, text)
    values = {
        path: _at(config, path) for path, field in walk_settings() if section_of(field) is None
    }
    usual = RunConfig()
    changed = [path for path, value in values.items() if value != _at(usual, path)]

    def named(setting: str, known: Callable[[Path], str], empty: str) -> str:
        path = values[setting]
        if not path or path == comfy_host.EMBEDDED:
            return path or empty
        found = known(Path(path))
        if not found:
            notes.append(f"{setting}: {path} is in no folder that ComfyUI allows; choose it there.")
        return found or empty

    adapters = [_adapter_line(each, notes) for each in config.base.adapters]
    return OpenedRun(
        program,
        values,
        [path for path in changed if path != "base.adapters"],
        base=named("base.path", _base_name, ""),
        family=config.family if config.base.path != comfy_host.EMBEDDED else "auto",
        base_adapters="\n".join(line for line in adapters if line),
        dataset=named("dataset.path", _dataset_name, ""),
        regularization=named("dataset.regularization.path", _dataset_name, _NONE),
        start_from=named("adapter.start_from", _lora_name, _NONE),
        notes=notes,
    )


def _read(name: str, text: str) -> tuple[str, RunConfig, list[str]]:
    from ...trainer_core.config.dialect import parse_yaml
    from ...trainer_core.families.run_files import load_config
    from ...trainer_core.foreign_runs import read_foreign
    from ...trainer_core.foreign_runs.documents import parse_document

    document = parse_document(name, text)
    if set(document.values) <= set(RunConfig.model_fields):
        return OWN, load_config(parse_yaml(text, name)), []
    run = read_foreign([document])
    told = run.outcome("near", "lacking", "unknown")
    notes = [f"{note.key} = {note.value}: {note.why or 'not known.'}" for note in told]
    return run.program, run.config(), notes


def _at(config: RunConfig, path: str) -> Any:
    place: Any = config
    for part in path.split("."):
        place = getattr(place, part)
    return place


def _below(path: Path, roots: Mapping[str, Sequence[Path]]) -> str:
    """The name of a path as nodes write it; empty where it is in none of the folders."""
    for name, places in roots.items():
        for place in places:
            root = Path(place).absolute()
            if path.absolute().is_relative_to(root):
                rest = path.absolute().relative_to(root).as_posix()
                return f"{name}/{rest}" if ".." not in Path(rest).parts else ""
    return ""


def _checked(name: str, resolve: Callable[[str], object]) -> str:
    try:
        resolve(name)
    except InputError:
        return ""
    return name


def _dataset_name(path: Path) -> str:
    return _checked(_below(path, comfy_host.data_roots()), comfy_host.dataset_path)


def _base_name(path: Path) -> str:
    known = {Path(comfy_host.base_path(name)): name for name in comfy_host.base_names()}
    return known.get(path.absolute(), "")


def _lora_name(path: Path) -> str:
    known = {comfy_host.lora_path(name).absolute(): name for name in comfy_host.lora_names()}
    return known.get(path.absolute(), "")


def _adapter_line(adapter: Any, notes: list[str]) -> str:
    name = _lora_name(Path(adapter.path))
    if not name:
        notes.append(f"base.adapters: {adapter.path} is not in the loras folder; add it there.")
        return ""
    return f"{name} = {adapter.strength}, {adapter.when}"
