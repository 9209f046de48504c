"""Folders of another program as ours: the first is ``dataset.path``, the others have entries."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from ..config.folders import OVERRIDES, own_name
from ..config.run import find_setting
from .rules import Balanced, Conversion, Note


@dataclass(frozen=True, slots=True)
class Folder:
    """A dataset of a file.

    Attributes:
        conversion: Its settings, by the YAML paths of the section ``dataset``.
        role: What its images are for.
        weight: Factor on their loss.
        key: What the file calls it.
        group: Of the folders among which regularization images are repeated until there are as
            many of them as of trained ones; empty where the program does not do so.
    """

    conversion: Conversion
    role: str = "train"
    weight: float = 1.0
    key: str = ""
    group: str = ""


def set_folders(to: Conversion, folders: Sequence[Folder]) -> None:
    """Make the first folder that is trained ``dataset.path``, and the others ``dataset.folders``.

    What only ``dataset`` can say holds for all folders; a folder that says otherwise is noted.
    """
    for each in folders:
        each.conversion.finish()
    named, folders = folders, _each_once(folders)
    own = [each for each in folders if each.role == "train"]
    trained = [each for each in own if "dataset.path" in each.conversion.values]
    first = next((each for each in trained if each.weight == 1), next(iter(trained), None))
    if first is None:
        notes = [note for each in folders for note in each.conversion.notes]
        to.notes += [_of_none(note) for note in notes if note.outcome != "default"]
        return
    if not has_masks(first):
        # What masks weigh is nothing to a folder that has none.
        other = next((each for each in folders if has_masks(each)), first)
        first.conversion.values |= {
            setting: value
            for setting, value in other.conversion.values.items()
            if setting.startswith("dataset.mask.") and setting != "dataset.mask.source"
        }
    _share_clips([first, *folders])
    shared = dict(to.values)
    to.values |= first.conversion.values
    to.notes += [_of_first(note) for note in first.conversion.notes]
    further: list[dict[str, Any]] = []
    order = [first]
    for each in folders:
        if each is first:
            continue
        entry, lost = _entry(each, first, shared)
        if not entry:
            stated = [note for note in each.conversion.notes if note.outcome != "default"]
            to.notes += [_of_none(note) for note in stated]
            continue
        to.notes += [_of_further(note, lost) for note in each.conversion.notes]
        further.append(entry)
        order.append(each)
    if further:
        to.say("dataset.folders", further, f"{len(further)} further folder(s)", "see above")
    to.balanced = _balanced(named, order)


_OF_CLIPS = ("dataset.frames", "dataset.fps", "dataset.max_clips", "dataset.start_frame")


def _share_clips(folders: Sequence[Folder]) -> None:
    """Give folders without clips what the first with clips says: it is nothing to images."""
    values = [each.conversion.values for each in folders]
    of_clips = next((each for each in values if "dataset.frames" in each), {})
    for each in values:
        if "dataset.frames" not in each:
            each |= {setting: of_clips[setting] for setting in _OF_CLIPS if setting in of_clips}


def has_masks(folder: Folder) -> bool:
    """Whether a folder has masks, in files or in its images' transparency."""
    values = folder.conversion.values
    return "dataset.mask_folder" in values or values.get("dataset.mask.source", "none") != "none"


def _default_of(setting: str) -> Any:
    found = find_setting(setting)
    return None if found is None else found.get_default(call_default_factory=True)


def _of_none(note: Note) -> Note:
    """What became of a key of a folder, where none is trained."""
    if note.setting:
        return replace(note, outcome="lacking", setting="", why="No folder of it is trained.")
    return note


def _of_first(note: Note) -> Note:
    """What became of a key of the first folder, which is no item of ``dataset.folders``."""
    if note.setting == "dataset.folders":
        return replace(note, outcome="lacking", setting="", why="The first folder has weight 1.")
    return note


def _of_further(note: Note, lost: Set[str]) -> Note:
    """What became of a key of a further folder."""
    if note.setting in lost:
        why = f"{note.setting} holds for all folders; it is as the first says."
        return replace(note, outcome="lacking", setting="", why=why)
    return replace(note, setting="dataset.folders" if note.setting else "")


def _entry(
    folder: Folder, first: Folder, shared: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """A folder as an item of ``dataset.folders``, and its settings that an item cannot have.

    Args:
        folder: The item is empty where it has no path.
        first: The one that ``dataset`` speaks of.
        shared: What the file says of all folders.
    """
    values, main = folder.conversion.values, {**shared, **first.conversion.values}
    lost: set[str] = set()
    path = values.get("dataset.path")
    if not path:
        return {}, lost
    entry: dict[str, Any] = {"path": path, "role": folder.role}
    if folder.weight != 1:
        entry["weight"] = folder.weight
    # Rules of captions hold as a whole, so that those of the first folder stand again.
    captions, others = (_captions_of(each) for each in (values, main))
    if captions != others:
        entry["captions"] = captions
    # A folder of regularization images has no trigger word unless it says one.
    again = {"dataset.trigger_word"} if folder.role == "regularization" else set()
    # What only the first folder says does not hold for this one.
    silent = {
        setting: shared.get(setting, _default_of(setting))
        for setting in first.conversion.values
        if setting not in values
    }
    for setting, value in {**values, **silent}.items():
        name = setting.removeprefix("dataset.")
        if setting == "dataset.path" or (value == main.get(setting) and setting not in again):
            continue
        if name in (*OVERRIDES, "metadata"):
            if value is not None:
                entry[own_name(name)] = value
        elif not name.startswith("captions.") and value != main.get(setting, _default_of(setting)):
            lost.add(setting)
            if setting in silent:
                why = f"{setting} holds for all folders; it is as the first says."
                folder.conversion.lack(f"{folder.key} ({name})", value, why)
    return entry, lost


def _captions_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rules of captions among a folder's settings."""
    before = "dataset.captions."
    return {
        name.removeprefix(before): value
        for name, value in values.items()
        if name.startswith(before)
    }


_SIZES = {"dataset.resolution", "dataset.more_resolutions"}
_PACES = {"dataset.num_repeats", "dataset.batch_size"}
"""What differs by how often an image is trained, and not by how it is read."""


def _place(folder: Folder) -> str:
    """Where a folder lies, as it is written; empty where it has no path."""
    path = folder.conversion.values.get("dataset.path", "")
    return os.path.normpath(path.replace("\\", "/")) if path else ""


def _each_once(folders: Sequence[Folder]) -> list[Folder]:
    """Each folder once: a run here reads no image in two folders.

    One that is named again gives the first its sizes, and what it says otherwise is noted.
    """
    kept: list[Folder] = []
    for folder in folders:
        place = _place(folder)
        first = next((each for each in kept if place and _place(each) == place), None)
        around = next((each for each in folders if _reads_below(each, place)), None)
        if first is None and around is None:
            kept.append(folder)
        elif first is not None and first.role == folder.role:
            _merge(first, folder)
        else:
            other = first or around
            assert other is not None
            why = f"Its images are those of {other.key or 'a folder'}, and stand once in a run."
            notes = [each for each in folder.conversion.notes if each.outcome != "default"]
            notes = [replace(n, outcome="lacking", setting="", why=why) for n in notes if n.setting]
            other.conversion.notes += notes
    return kept


def _reads_below(folder: Folder, place: str) -> bool:
    """Whether a folder's images are also those of a place below it."""
    values, own = folder.conversion.values, _place(folder)
    below = values.get("dataset.subfolders", _default_of("dataset.subfolders"))
    named = values.get("dataset.layout") == "kohya"  # its folders below have names of one form
    return bool(own and below and not named and place.startswith(f"{own}/"))


def _merge(first: Folder, folder: Folder) -> None:
    """Give a folder the sizes of one that names it again, and note what that says otherwise."""
    main, own = first.conversion.values, folder.conversion.values
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
    if folder.weight != first.weight:
        differ.add("dataset.folders")
    for note in folder.conversion.notes:
        if note.setting in differ and note.outcome != "lacking":
            first.conversion.notes.append(_of_merged(note, first.key))
        elif note.setting in _SIZES:
            first.conversion.notes.append(replace(note, setting="dataset.more_resolutions"))
        elif note.outcome != "default":
            first.conversion.notes.append(note)
    settings = {note.setting for note in folder.conversion.notes}
    for setting in sorted(differ - settings - {"dataset.folders"}):
        key = f"{folder.key} ({setting.removeprefix('dataset.')})"
        note = Note(key, str(_default_of(setting)), "near", setting)
        first.conversion.notes.append(_of_merged(note, first.key))


def _of_merged(note: Note, first: str) -> Note:
    """What became of a key that says of a folder something else than the first that names it."""
    why = f"A folder stands once in a run, here with the value of {first or 'the first'}."
    if note.setting in _PACES:
        return replace(note, outcome="near", why=why)
    return replace(note, outcome="lacking", setting="", why=why)


def _balanced(named: Sequence[Folder], order: Sequence[Folder]) -> list[Balanced]:
    """The regularization folders that are repeated until they equal the trained ones.

    Args:
        order: Those of the run, as `dataset_folders` counts them.
    """
    at = {(_place(each), each.role): number for number, each in enumerate(order)}
    groups: dict[str, Balanced] = {}
    for each in named:
        number = at.get((_place(each), each.role))
        if not each.group or number is None:
            continue
        group = groups.setdefault(each.group, Balanced(each.group, {}, {}))
        side = group.trained if each.role == "train" else group.ordinary
        side[number] = each.conversion.values.get("dataset.num_repeats", 1)
    return [each for each in groups.values() if each.trained and each.ordinary]
