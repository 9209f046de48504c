"""Several datasets of a graph become one: the folders of a run file's ``dataset`` section."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....trainer_core.config.dataset import DatasetSection
from ....trainer_core.config.folders import OVERRIDES, own_name
from ....trainer_core.config.run import nested
from ....trainer_core.errors import InputError
from ..socket_values import DatasetChoice

_OF_A_FOLDER = {*OVERRIDES, "path", "folders", "regularization", "metadata"}
_OF_FILES = {"missing_image", "missing_control", "unreadable", "animated"}
"""What images of a graph say nothing of."""

_OF_THE_RUN = ("preservation.", "validation.")
_SHOWN = 5
Values = Mapping[str, Any]


def combined(datasets: Sequence[DatasetChoice]) -> DatasetChoice:
    """Join datasets. The first that is trained, with weight 1, is ``dataset.path``.

    What was joined before is taken apart. The result has all folders, each with what it says
    otherwise than the first.

    Raises:
        InputError: When none is trained with weight 1, a folder comes twice, or settings differ
            that hold for all folders.
    """
    parts = tuple(each for whole in datasets for each in whole.parts or (whole,))
    if any("path" not in each.values for each in parts):
        raise InputError(
            f"a Concept Slider among {len(parts)} datasets",
            "datasets with images; a slider has none, and is trained alone",
            "Connect Concept Slider to Cache Embeddings itself.",
        )
    first = next((each for each in parts if each.role == "train" and each.weight == 1), None)
    if first is None:
        raise _no_first(parts)
    _require_different(parts)
    others = [each for each in parts if each is not first]
    own = {name: value for name, value in first.values.items() if name in _OF_A_FOLDER}
    masks = {"mask.source": _said("mask.source", first)}
    folders = [folder for each in others for folder in _folders(each, first)]
    shared = nested({**_shared(first, others), **masks})
    return DatasetChoice({**own, **shared, "folders": folders}, parts=parts)


def require_alone(dataset: DatasetChoice) -> None:
    """Refuse a role or a weight that has nothing beside it.

    Raises:
        InputError: When the only dataset is not trained, or has a weight.
    """
    if dataset.parts or (dataset.role == "train" and dataset.weight == 1):
        return
    own = f"role is {dataset.role}" if dataset.role != "train" else f"weight is {dataset.weight:g}"
    raise InputError(
        f"{own} for {_name(dataset)}, and it is the only dataset",
        "role train and weight 1 where one dataset is trained: both compare it with others",
        "Set role to train and weight to 1, or join it with others in Combine Datasets.",
    )


def _no_first(parts: Sequence[DatasetChoice]) -> InputError:
    found = ", ".join(f"{_name(each)}: {each.role}, weight {each.weight:g}" for each in parts)
    return InputError(
        f"no dataset with role train and weight 1 ({found})",
        "one dataset at least that is trained with weight 1; the others count beside it",
        "Set role to train and weight to 1 on the dataset of your own images.",
    )


def _require_different(parts: Sequence[DatasetChoice]) -> None:
    paths = [str(each.values["path"]) for each in parts]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InputError(
            f"{Path(twice).name} comes twice",
            "datasets of different folders",
            "Disconnect one of the two; to train a folder more often, raise its num_repeats.",
        )


def _shared(first: DatasetChoice, others: Sequence[DatasetChoice]) -> dict[str, Any]:
    """The settings that hold for all folders, by path; refuses what differs."""
    found: dict[str, tuple[Any, str]] = {}
    differing = [line for each in others for line in _unset(first, each)]
    for each in (first, *others):
        for path, value in _of_all_folders(each).items():
            before, name = found.setdefault(path, (value, _name(each)))
            if value == before:
                continue
            # What holds for the whole run is said by whoever says something.
            silent = path.startswith(_OF_THE_RUN) and _default(path) in (value, before)
            if not silent:
                differing.append(
                    _difference(path, before, name, theirs=value, their_name=_name(each))
                )
            elif before == _default(path):
                found[path] = (value, _name(each))
    if differing:
        raise _differ(differing)
    return {path: value for path, (value, _) in found.items()}


def _unset(first: DatasetChoice, other: DatasetChoice) -> Iterator[str]:
    """Settings that a folder leaves unset and the first does not: it would take the first's."""
    for name in OVERRIDES:
        ours = _said(name, first)
        if _said(name, other) is None and ours is not None:
            yield _difference(name, ours, _name(first), theirs=None, their_name=_name(other))


def _difference(path: str, ours: Any, our_name: str, theirs: Any, their_name: str) -> str:
    difference = f"{_shown(ours)} for {our_name} and {_shown(theirs)} for {their_name}"
    return f"dataset.{path} is {difference}"


def _differ(differing: Sequence[str]) -> InputError:
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    own = ", ".join(f"dataset.{name}" for name in OVERRIDES)
    return InputError(
        "; ".join(differing[:_SHOWN]) + more,
        f"one value for all datasets that are joined; each has its own of {own}, role and weight",
        "Set it alike on the nodes of these datasets.",
    )


def _of_all_folders(choice: DatasetChoice) -> dict[str, Any]:
    """A dataset's settings that hold for all folders, by their path in ``dataset``."""
    unsaid = {path: value for path, value in _flat(_section()) if path not in _OF_FILES}
    return {**unsaid, **dict(_flat(choice.values))}


def _flat(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if path in _OF_A_FOLDER:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _folders(choice: DatasetChoice, first: DatasetChoice) -> Iterator[dict[str, Any]]:
    """A dataset as folders of the run file: its own, and that of its regularization images."""
    own_values = {name: _said(name, choice) for name in OVERRIDES}
    own = {own_name(n): value for n, value in own_values.items() if value != _said(n, first)}
    # Without these, ordinary images have no trigger word and need no masks.
    word = {own_name(name): own_values[name] for name in ("trigger_word", "mask.source")}
    word = word if choice.role == "regularization" else {}
    listed = {"metadata": choice.values["metadata"]} if choice.values.get("metadata") else {}
    yield {
        "path": choice.values["path"],
        "role": choice.role,
        "weight": choice.weight,
        **own,
        **word,
        **listed,
    }
    ordinary = choice.values.get("regularization", {})
    if ordinary.get("path"):
        own.pop("trigger_word", None)
        if own.get("mask_source") == "files":
            own["mask_source"] = "auto"
        yield {**own, "num_repeats": 1, "weight": 1.0, **ordinary, "role": "regularization"}


def _said(name: str, choice: DatasetChoice) -> Any:
    """What a dataset says of a folder's setting."""
    default, values = _default(name), choice.values
    *sections, last = name.split(".")
    for section in sections:
        values = values.get(section, {})
    if isinstance(default, Mapping):
        return {**default, **values.get(last, {})}
    return values.get(last, default)


def _default(path: str) -> Any:
    value: Any = _section()
    for name in path.split("."):
        value = value[name]
    return value


@functools.cache
def _section() -> dict[str, Any]:
    return DatasetSection().model_dump()


def _name(choice: DatasetChoice) -> str:
    return Path(choice.values["path"]).name


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items() if each)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value) or "empty"
