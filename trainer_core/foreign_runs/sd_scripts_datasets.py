"""Datasets of sd-scripts: folders named ``10_name``, or a TOML of datasets with subsets.

Source: kohya-ss/sd-scripts at 48d368fa, ``library/config_util.py`` and ``DreamBoothDataset`` of
``library/train_util.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .folders import Folder, set_folders
from .kohya_keys import EVERYWHERE, SD
from .rules import (
    Conversion,
    Note,
    Source,
    Table,
    Together,
    flag,
    mapping,
    mappings,
    number,
    text,
    whole,
)
from .vocabulary import set_reading

_SOME_CAPTIONS = (
    "Where some images of a folder have captions, those without stop the run; there the folder's "
    "name is their caption."
)


_FILE: Table = {"general": Together("dataset"), "datasets": Together("dataset")}


def read_subsets(name: str, values: Mapping[str, Any], arguments: Source, to: Conversion) -> None:
    """Turn the subsets of all datasets into folders.

    Args:
        arguments: Of the training, which hold where the file says nothing.
    """
    top = Source(name, values, _FILE)
    top.tell_unknown(to)
    general = Source(name, top.read("general", mapping, {}), SD["datasets"], "general.")
    general.tell_unknown(to)
    folders: list[Folder] = []
    for place, each in enumerate(top.read("datasets", mappings, [])):
        dataset = Source(name, each, SD["datasets"], f"datasets[{place}].")
        dataset.tell_unknown(to)
        for number_, subset in enumerate(dataset.read("subsets", mappings, [])):
            source = Source(name, subset, SD["datasets"], f"{dataset.prefix}subsets[{number_}].")
            folder = _folder(source, (arguments, general, dataset))
            folders.append(replace(folder, group=dataset.prefix.rstrip(".")))
    set_folders(to, folders)


def read_named_folders(arguments: Source, to: Conversion) -> None:
    """Turn ``train_data_dir`` and ``reg_data_dir``, of folders named ``10_name``, into ours."""
    known = {key: value for key, value in arguments.values.items() if key in EVERYWHERE}
    folders: list[Folder] = []
    for key, role in (("train_data_dir", "train"), ("reg_data_dir", "regularization")):
        if not arguments.has(key):
            continue
        own, path = Conversion(), arguments.read(key, text)
        own.say("dataset.path", path, key, path)
        own.say("dataset.layout", "kohya", key, path, _SOME_CAPTIONS)
        source = Source(arguments.file, known, EVERYWHERE)
        _read_captions(source, own)
        masked = _read_masks(source, own, key)
        set_reading(own, key, missing_caption="error", subfolders=True, masks=masked)
        folders.append(replace(_with_role(arguments, own, role, key), group="reg_data_dir"))
    if folders:
        set_folders(to, folders)
    else:
        _read_captions(Source(arguments.file, known, EVERYWHERE), to)


def _folder(subset: Source, above: Sequence[Source]) -> Folder:
    """A subset as a folder.

    Args:
        above: The arguments, ``general`` and its dataset: what each says where the next is silent.
    """
    to = Conversion()
    places: dict[str, str] = {}
    values = dict(subset.values)
    for layer in above[::-1]:
        for key in layer.values.keys() & (SD["datasets"].keys() - {"subsets"}):
            if layer.has(key) and values.get(key) is None:
                values[key], places[key] = layer.values[key], layer.prefix
    source = Source(subset.file, values, SD["datasets"], subset.prefix)
    _read_captions(source, to)
    path = f"{source.prefix}image_dir"
    if source.has("image_dir"):
        folder = source.read("image_dir", text)
        to.say("dataset.path", folder, path, folder)
    masked = _read_masks(source, to, source.prefix.rstrip("."))
    set_reading(to, path, missing_caption="empty", masks=masked)
    role = "regularization" if source.read("is_reg", flag, False) else "train"
    if role != "train":
        to.tell("dataset.folders", f"{source.prefix}is_reg", True)
    to.finish()
    to.notes = [_where_it_stands(note, source.prefix, places) for note in to.notes]
    return _with_role(above[0], to, role, source.prefix.rstrip("."))


def _where_it_stands(note: Note, prefix: str, places: Mapping[str, str]) -> Note:
    """A note by the key that says it, which may stand above the subset."""
    key = note.key.removeprefix(prefix)
    return replace(note, key=f"{places[key]}{key}") if key in places else note


def _with_role(arguments: Source, to: Conversion, role: str, key: str) -> Folder:
    weight = arguments.read("prior_loss_weight", number, 1.0) if role != "train" else 1.0
    return Folder(to, role, weight, key)


def _read_captions(source: Source, to: Conversion) -> None:
    """What an argument, a dataset and a subset may say of sizes and captions."""
    if source.has("caption_extention"):
        source.values["caption_extension"] = source.values["caption_extention"]
    source.apply(to)
    upscale = not source.read("bucket_no_upscale", flag, False)
    source.say(to, "dataset.upscale", upscale, "bucket_no_upscale", not upscale)
    if not source.read("enable_bucket", flag, False):
        why = "Images are always put into buckets of like shape; there all get one shape."
        to.lack(f"{source.prefix}enable_bucket", False, why)
    if source.read("enable_wildcard", flag, False):
        source.say(to, "dataset.captions.wildcards", True, "enable_wildcard")
        source.say(to, "dataset.captions.variants", "lines", "enable_wildcard", True)
    shuffled = source.read("shuffle_caption", flag, False)
    if shuffled:
        near = "Another order in each of 8 epochs; there in each step."
        source.say(to, "dataset.captions.shuffle", 8, "shuffle_caption", True, near)
        source.take(to, "keep_tokens", "dataset.captions.keep", whole)
    else:
        source.off(to, "keep_tokens", why="No tag is moved without shuffle_caption.")
    rate, key = source.read("caption_tag_dropout_rate", number, 0.0), "caption_tag_dropout_rate"
    if rate and shuffled:
        near = "The order that is written keeps all its tags."
        source.say(to, "dataset.captions.drop", rate, key, near=near)
    elif rate:
        to.lack(f"{source.prefix}{key}", rate, "Tags are dropped of shuffled captions alone.")


def _read_masks(source: Source, to: Conversion, key: str) -> bool:
    """Say where masks are, and that what is black in them is not trained."""
    alpha = source.read("alpha_mask", flag, False)
    if alpha:
        source.say(to, "dataset.mask.source", "alpha", "alpha_mask", True)
    elif source.values.get("conditioning_data_dir"):
        folder = source.read("conditioning_data_dir", text)
        source.say(to, "dataset.mask_folder", folder, "conditioning_data_dir")
    else:
        return False
    for setting, value in (("background", 0.0), ("normalize", False)):
        to.say(f"dataset.mask.{setting}", value, f"{key} ({setting})", value, stated=False)
    return True
