"""A run file that somebody dropped or chose in the browser, as what nodes can be told of it.

It may come from a stranger. Nothing that it names is opened: a path becomes the name that a node
offers for it, where it lies in a folder that ComfyUI allows, and is else left empty and told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...trainer_core.config import RunConfig
from ...trainer_core.config.folders import OVERRIDES, FolderSection, own_name
from ...trainer_core.config.run import walk_settings
from ...trainer_core.config.section import section_of
from ...trainer_core.errors import InputError
from ...trainer_core.families.graph_model_denoiser import GRAPH_MODEL
from ...trainer_core.printable import listed
from ..host import comfy_host
from ..host.folders import resolve_below

if TYPE_CHECKING:
    from ...trainer_core.foreign_runs import Document

_NONE = "none"
_RUN_FILE = "run.yaml"
OWN = "Adapter Trainer"
_MOST_BATCHED = 50


class OpenedFolder(NamedTuple):
    """A further folder of a dataset.

    Attributes:
        name: As Dataset From Folder names it; empty where it is elsewhere.
        role: What its images are for.
        weight: Factor on their loss.
        values: Its settings, by the paths that those of the dataset have.
    """

    name: str
    role: str
    weight: float
    values: Mapping[str, Any]


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
        folders: The dataset's further folders.
        controls: The control image of each preview prompt as Load Image names it; empty where one
            of them cannot be loaded.
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
    folders: Sequence[OpenedFolder]
    controls: Sequence[str]
    start_from: str
    notes: Sequence[str]


def read_documents(files: object, *, recognize: bool = False) -> list[Document]:
    """Parse the text of files that make a run, mappings with ``name`` and ``text``, of anybody.

    The file that says most is in front. With ``recognize`` files that are not run files, or cannot
    be parsed, are left out, which may be all.

    Raises:
        InputError: When a file cannot be read, and none is to be left out.
    """
    from ...trainer_core.foreign_runs import in_reading_order
    from ...trainer_core.foreign_runs.documents import parse_document

    documents: list[Document] = []
    for file in files if isinstance(files, list) else []:
        request = file if isinstance(file, Mapping) else {}
        name, text = str(request.get("name", "")), request.get("text")
        if not isinstance(text, str):
            continue
        try:
            plain = Path(name.replace("\\", "/")).name or _RUN_FILE
            documents.append(parse_document(plain, text))
        except InputError:
            if not recognize:
                raise
    if not documents and not recognize:
        raise InputError("no text of a file", "name and text of a run file", "Choose a file.")
    own = [each for each in documents if is_own(each.values)]
    found = own[:1] or in_reading_order(documents)
    return found if recognize else [*found, *(each for each in documents if each not in found)]


def read_run(run: str) -> list[Document]:
    """Read the run file that a run on disk has kept, which is named as Load Run names it.

    Raises:
        InputError: When there is no such run, or no such file in it.
    """
    from ...trainer_core.foreign_runs.documents import open_document
    from ...trainer_core.training.checkpoints.run_folder import run_file_of

    document = open_document(run_file_of(comfy_host.run_path(run)))
    return [replace(document, name=f"{run}/{_RUN_FILE}")]


def is_own(values: Mapping[str, Any]) -> bool:
    """Whether a file is a run file of this trainer; one with a mistake in a name is, too."""
    known = values.keys() & RunConfig.model_fields.keys()
    sections = [name for name in known if isinstance(values[name], Mapping)]
    return bool(sections) and 2 * len(known) > len(values)


def open_run_file(documents: Sequence[Document]) -> OpenedRun:
    """Say what the nodes can be told of a run file, behind which others that belong to it may come.

    Raises:
        InputError: When it is none that is read, or its settings contradict each other.
    """
    program, config, notes = _read(documents)
    values = {
        path: _at(config, path) for path, field in walk_settings() if section_of(field) is None
    }
    usual = RunConfig()
    folders = [_folder_values(each, values) for each in config.dataset.folders]
    changed = [
        path for path in values if any(own[path] != _at(usual, path) for own in (values, *folders))
    ]

    if config.family == GRAPH_MODEL:
        notes.append(
            f"base.path: {config.base.path} is a model of the graph; connect its loader to Base "
            "From Model."
        )

    def named(setting: str, known: Callable[[Path], str], empty: str, path: str = "") -> str:
        path = path or values[setting]
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
        base=named("base.path", base_name, "") if config.family != GRAPH_MODEL else "",
        family=config.family if config.base.path != comfy_host.EMBEDDED else "auto",
        base_adapters="\n".join(line for line in adapters if line),
        dataset=named("dataset.path", dataset_name, ""),
        regularization=named("dataset.regularization.path", dataset_name, _NONE),
        folders=[
            OpenedFolder(
                named("dataset.folders", dataset_name, "", each.path),
                each.role,
                each.weight,
                own,
            )
            for each, own in zip(config.dataset.folders, folders, strict=True)
        ],
        controls=_controls(config, notes),
        start_from=named("adapter.start_from", lora_name, _NONE),
        notes=notes,
    )


def _read(documents: Sequence[Document]) -> tuple[str, RunConfig, list[str]]:
    from ...trainer_core.config.yaml_dialect import parse_yaml
    from ...trainer_core.families.run_files import load_config
    from ...trainer_core.foreign_runs import read_foreign

    first = documents[0]
    if set(first.values) <= set(RunConfig.model_fields) or is_own(first.values):
        if len(documents) > 1:
            names = listed([each.name for each in documents])
            raise InputError(f"{names} together", "one run file", "Open them one after the other.")
        return OWN, load_config(parse_yaml(first.text, first.name)), []
    run = read_foreign(documents, in_graph=True)
    remarks = run.outcome("near", "lacking", "unknown")
    notes = [f"{note.key} = {note.value}: {note.why or 'not known.'}" for note in remarks]
    return run.program, run.config(), notes


def _at(config: RunConfig, path: str) -> Any:
    place: Any = config
    for part in path.split("."):
        place = getattr(place, part)
    return place


def _folder_values(folder: FolderSection, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A folder's settings: what it says nothing of is as the dataset says."""
    own: dict[str, Any] = {"dataset.metadata": folder.metadata}
    for name in OVERRIDES:
        found = getattr(folder, own_name(name))
        if name == "trigger_word" and folder.role == "regularization":
            # Ordinary images have none, and the nodes put one in front.
            adds = folder.captions is None or folder.captions.add_trigger
            found = (found if adds else "") or ""
        if name == "mask.source" and folder.role == "regularization" and found is None:
            found = "auto" if values.get(f"dataset.{name}") == "files" else None
        if name == "captions" and found is not None:
            own |= {f"dataset.captions.{key}": value for key, value in found}
        elif found is not None:
            own[f"dataset.{name}"] = found
    return {**values, **own}


def _controls(config: RunConfig, notes: list[str]) -> list[str]:
    rows = config.preview.controls
    if not rows or not config.preview.prompts:
        return []
    if any(len(row) != 1 for row in rows):
        notes.append("preview.controls: Preview Prompts takes one control image for each prompt.")
        return []
    paths = [row[0] for row in rows]
    names = {path: image_name(Path(path)) for path in paths}
    if missing := [path for path, name in names.items() if not name]:
        notes.append(
            f"preview.controls: {listed(missing, 3)}: not in ComfyUI's input or output folder; add "
            "Load Image and connect it to controls of Preview Prompts."
        )
        return []
    if len(names) > 1 and len(paths) > _MOST_BATCHED:
        notes.append(f"preview.controls: Batch Images takes {_MOST_BATCHED} images at most.")
        return []
    if len(names) > 1:
        notes.append("preview.controls: Batch Images makes all as large as the first.")
    return [names[path] for path in paths]


def _adapter_line(adapter: Any, notes: list[str]) -> str:
    name = lora_name(Path(adapter.path))
    if not name:
        notes.append(f"base.adapters: {adapter.path} is not in the loras folder; add it there.")
        return ""
    return f"{name} = {adapter.strength}, {adapter.when}"


def dataset_name(path: Path) -> str:
    """As Dataset From Folder names a folder."""
    return _checked(_below(path, comfy_host.data_roots()), comfy_host.dataset_path)


def base_name(path: Path) -> str:
    """As Load Training Base names a model."""
    return _listed(path, comfy_host.base_names(), comfy_host.base_path)


def lora_name(path: Path) -> str:
    """As Load LoRA names an adapter file."""
    return _listed(path, comfy_host.lora_names(), comfy_host.lora_path)


def image_name(path: Path) -> str:
    """As Load Image names an image: of the input folder, or with ``[output]`` behind it."""
    roots = {kind: comfy_host.data_roots()[kind] for kind in ("input", "output")}
    name = _checked(_below(path, roots), lambda name: resolve_below(name, roots, "image"))
    kind, _, rest = name.partition("/")
    return f"{rest} [output]" if kind == "output" else rest


def _listed(path: Path, names: Sequence[str], path_of: Callable[[str], str | Path]) -> str:
    """The name of a file in a list, in which other files may be gone, or be links to nothing."""
    for name in names:
        with contextlib.suppress(InputError):
            if Path(path_of(name)).absolute() == path.absolute():
                return name
    return ""


def _below(path: Path, roots: Mapping[str, Sequence[Path]]) -> str:
    """``<root>/<path below it>``."""
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
