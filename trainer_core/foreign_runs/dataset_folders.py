"""Folders of another program as ours: the first is ``dataset.path``, the others have entries."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config.folders import OVERRIDES, FolderSection, own_name
from ..config.run import find_setting
from ..config.section import expectation
from .conversion import Balanced, Conversion, Note, fits


@dataclass(frozen=True, slots=True)
class Folder:
    """A dataset of a file.

    Attributes:
        conversion: Its settings, by the YAML paths of the section ``dataset``.
        group: Of the folders among which regularization images are repeated until there are as
            many of them as of trained ones; empty where the program does not do so.
    """

    conversion: Conversion
    role: str = "train"
    weight: float = 1.0
    key: str = ""
    group: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The settings."""
        return self.conversion.values

    @property
    def stated(self) -> list[Note]:
        """The notes of what the file says."""
        return [note for note in self.conversion.notes if note.outcome != "default"]

    @property
    def place(self) -> str:
        """Where it lies, as it is written; empty where it has no path."""
        path = self.values.get("dataset.path", "")
        return os.path.normpath(path.replace("\\", "/")) if path else ""

    @property
    def masked(self) -> bool:
        """Whether it has masks, in files or in its images' transparency."""
        source = self.values.get("dataset.mask.source", "none")
        return "dataset.mask_folder" in self.values or source != "none"


_OF_CLIPS = ("dataset.frames", "dataset.fps", "dataset.max_clips", "dataset.start_frame")
_SIZES = {"dataset.resolution", "dataset.more_resolutions"}
_PACES = {"dataset.num_repeats", "dataset.batch_size"}
"""What differs by how often an image is trained, and not by how it is read."""
WEIGHT = "dataset.folders.weight"
"""What notes on a folder's weight name, until the folder is an item."""


def set_folders(to: Conversion, folders: Sequence[Folder]) -> None:
    """Make the first folder that is trained ``dataset.path``, and the others ``dataset.folders``.

    What only ``dataset`` can say holds for all folders; a folder that says otherwise is noted.
    """
    for each in folders:
        each.conversion.finish()
    kept = _each_once(folders)
    trained = [each for each in kept if each.role == "train" and each.place]
    first = next((each for each in trained if each.weight == 1), next(iter(trained), None))
    if first is None:
        for each in kept:
            _lose(each, to)
        return
    _share([first, *kept])
    shared = dict(to.values)
    to.values |= first.values
    for note in first.conversion.notes:
        of_item = note.setting in ("dataset.folders", WEIGHT)
        to.notes.append(_lost(note, "The first folder has weight 1.") if of_item else note)
    items: list[dict[str, Any]] = []
    order = [first]
    for each in kept:
        if each is first:
            continue
        if not each.place:
            _lose(each, to)
            continue
        items.append(_item(each, first, shared, to))
        order.append(each)
    if items:
        to.set("dataset.folders", items, f"{len(items)} further folder(s)", "see above")
    to.balanced = _balanced(folders, order)


def _lose(folder: Folder, to: Conversion) -> None:
    """Note what is lost with a folder that is not part of the run."""
    if not folder.place and folder.key:
        to.notes.append(Note(folder.key, "", "lacking", why="It has no path."))
    to.notes += [_lost(note, "No folder of it is trained.") for note in folder.stated]


def _lost(note: Note, why: str) -> Note:
    """A note on what would have set something, and does not."""
    return replace(note, outcome="lacking", setting="", why=why) if note.setting else note


def _share(folders: Sequence[Folder]) -> None:
    """Give folders without masks or clips what the others say of them: it is nothing to them."""
    first = folders[0]
    if not first.masked and (other := next((each for each in folders if each.masked), None)):
        for setting, value in other.values.items():
            if setting.startswith("dataset.mask.") and setting != "dataset.mask.source":
                first.values[setting] = value
    of_clips = next((each.values for each in folders if "dataset.frames" in each.values), {})
    for each in folders:
        if "dataset.frames" not in each.values:
            each.values.update({name: of_clips[name] for name in _OF_CLIPS if name in of_clips})


def _default_of(setting: str) -> Any:
    found = find_setting(setting)
    return None if found is None else found.get_default(call_default_factory=True)


def _item(
    folder: Folder, first: Folder, shared: Mapping[str, Any], to: Conversion
) -> dict[str, Any]:
    """A folder as an item of ``dataset.folders``; what an item cannot have is noted.

    Args:
        shared: What the file says of all folders.
    """
    values, main = folder.values, {**shared, **first.values}
    item: dict[str, Any] = {"path": values["dataset.path"], "role": folder.role}
    if folder.weight != 1:
        item["weight"] = folder.weight
    # Rules of captions hold as a whole, so that those of the first folder stand again.
    captions, others = (_captions_of(each) for each in (values, main))
    if captions != others:
        item["captions"] = captions
    lost: set[str] = set()
    # What only the first folder says does not hold for this one.
    silent = {name: shared.get(name, _default_of(name)) for name in first.values.keys() - values}
    for setting, value in {**values, **silent}.items():
        name = setting.removeprefix("dataset.")
        # A folder of regularization images has no trigger word unless it says one.
        again = name == "trigger_word" and folder.role == "regularization"
        if name == "path" or (value == main.get(setting) and not again):
            continue
        if name in (*OVERRIDES, "metadata"):
            item |= {own_name(name): value} if value is not None else {}
        elif not name.startswith("captions.") and value != main.get(setting, _default_of(setting)):
            lost.add(setting)
            if setting in silent:
                to.missing(f"{folder.key} ({name})", value, _of_all(setting))
    reasons = {setting: _of_all(setting) for setting in lost} | _without_unfit(item, folder, to)
    for note in folder.conversion.notes:
        if note.setting in reasons:
            to.notes.append(_lost(note, reasons[note.setting]))
        else:
            to.notes.append(replace(note, setting="dataset.folders" if note.setting else ""))
    return item


def _without_unfit(item: dict[str, Any], folder: Folder, to: Conversion) -> dict[str, str]:
    """Take out of an item what it cannot have, so that the folders stay.

    Returns:
        What notes call each of it, to the reason; it is noted where the folder has no note on it.
    """
    reasons: dict[str, str] = {}
    stated = {note.setting for note in folder.stated}
    for name, value in list(item.items()):
        if fits("dataset.folders", [{"path": item["path"], name: value}]):
            continue
        del item[name]
        setting = f"dataset.folders.{name}"
        reasons[setting] = f"{setting} takes {expectation(FolderSection.model_fields[name])}."
        if setting not in stated:
            to.missing(f"{folder.key} ({name})", value, reasons[setting])
    return reasons


def _of_all(setting: str) -> str:
    return f"{setting} holds for all folders; it is as the first says."


def _captions_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rules of captions among a folder's settings."""
    before = "dataset.captions."
    return {
        name.removeprefix(before): each for name, each in values.items() if name.startswith(before)
    }


def _each_once(folders: Sequence[Folder]) -> list[Folder]:
    """Each folder once: a run here reads no image in two folders.

    One that is named again gives the first its sizes, and what it says otherwise is noted.
    """
    kept: list[Folder] = []
    for folder in folders:
        place = folder.place
        first = next((each for each in kept if place and each.place == place), None)
        other = first or next((each for each in folders if _reads_below(each, place)), None)
        if other is None:
            kept.append(folder)
        elif first is not None and first.role == folder.role:
            _merge(first, folder)
        else:
            why = f"Its images are those of {other.key or 'a folder'}, and stand once in a run."
            other.conversion.notes += [_lost(note, why) for note in folder.stated if note.setting]
    return kept


def _reads_below(folder: Folder, place: str) -> bool:
    """Whether a folder's images are also those of a place below it."""
    below = folder.values.get("dataset.subfolders", _default_of("dataset.subfolders"))
    named = folder.values.get("dataset.layout") == "kohya"  # its folders have names of one form
    return bool(folder.place and below and not named and place.startswith(f"{folder.place}/"))


def _merge(first: Folder, folder: Folder) -> None:
    """Give a folder the sizes of one that names it again, and note what that says otherwise."""
    main, own, notes = first.values, folder.values, first.conversion.notes
    size = _default_of("dataset.resolution")
    sizes: set[int] = set()
    for each in (main, own):
        sizes |= {each.get("dataset.resolution", size), *each.get("dataset.more_resolutions", ())}
    largest, *others = sorted(sizes, reverse=True)
    main |= {"dataset.resolution": largest, "dataset.more_resolutions": others}
    differ = {
        setting
        for setting in (main.keys() | own.keys()) - _SIZES
        if own.get(setting, usual := _default_of(setting)) != main.get(setting, usual)
    }
    differ |= {WEIGHT} if folder.weight != first.weight else set()
    why = f"A folder stands once in a run, here with the value of {first.key or 'the first'}."
    silent = differ - {note.setting for note in folder.conversion.notes} - {WEIGHT}
    for note in folder.conversion.notes:
        if note.setting in _PACES & differ and note.outcome != "lacking":
            notes.append(replace(note, outcome="near", why=why))
        elif note.setting in differ and note.outcome != "lacking":
            notes.append(_lost(note, why))
        elif note.setting in _SIZES:
            notes.append(replace(note, setting="dataset.more_resolutions"))
        elif note.outcome != "default":
            notes.append(note)
    for setting in sorted(silent):
        key = f"{folder.key} ({setting.removeprefix('dataset.')})"
        note = Note(key, str(_default_of(setting)), "near", setting=setting, why=why)
        notes.append(note if setting in _PACES else _lost(note, why))


def _balanced(named: Sequence[Folder], order: Sequence[Folder]) -> list[Balanced]:
    """The regularization folders that are repeated until they equal the trained ones.

    Args:
        order: Those of the run, as `dataset_folders` counts them.
    """
    at = {(each.place, each.role): number for number, each in enumerate(order)}
    groups: dict[str, Balanced] = {}
    for each in named:
        number = at.get((each.place, each.role))
        if not each.group or number is None:
            continue
        group = groups.setdefault(each.group, Balanced(each.group, {}, {}))
        side = group.trained if each.role == "train" else group.ordinary
        side[number] = each.values.get("dataset.num_repeats", 1)
    return [each for each in groups.values() if each.trained and each.ordinary]
