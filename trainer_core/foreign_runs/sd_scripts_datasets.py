"""Datasets of sd-scripts: folders named ``10_name``, or a TOML of datasets with subsets.

Source: kohya-ss/sd-scripts at 48d368fa, ``library/config_util.py`` and ``DreamBoothDataset`` of
``library/train_util.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .kohya_keys import ANY, READER
from .rules import (
    EVERY,
    Conversion,
    Lacks,
    Maps,
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
from .vocabulary import AUGMENTED, Folder, set_folders, set_reading, sides

_SHAPES = "dataset.max_aspect_ratio says how far the shapes of buckets go."
_TAGS = "Tags are parted in one way; dataset.captions.keep counts those that stay."
_FIRST_LINE = "There the first line of a file alone is the caption, without enable_wildcard."
_SOME_CAPTIONS = (
    "Where some images of a folder have captions, those without stop the run; there the folder's "
    "name is their caption."
)
_ROUND = "Captions are left out by chance: dataset.caption_dropout."


def _size(value: Any) -> int:
    """One side, ``width,height``, or a list of both."""
    parts = value.split(",") if isinstance(value, str) else value
    return sides([each.strip() for each in parts] if isinstance(value, str) else parts)


OF_ALL: Table = {
    "resolution": Maps(
        "dataset.resolution", _size, near="Buckets have as many pixels as width x height."
    ),
    "enable_bucket": Together("dataset.resolution"),
    "min_bucket_reso": Lacks(_SHAPES, (None, 256)),
    "max_bucket_reso": Lacks(_SHAPES, (None, 1024)),
    "bucket_reso_steps": Maps("dataset.bucket_step", whole, 64),
    "bucket_no_upscale": Together("dataset.upscale"),
    "resize_interpolation": Lacks("Images are resized with Lanczos.", (None, "lanczos")),
    "shuffle_caption": Together("dataset.captions.shuffle"),
    "caption_separator": Maps("dataset.captions.separator", text),
    "keep_tokens": Maps("dataset.captions.keep", whole),
    "keep_tokens_separator": Lacks(_TAGS),
    "secondary_separator": Lacks(_TAGS),
    "enable_wildcard": Together("dataset.captions.wildcards, dataset.captions.variants"),
    "caption_prefix": Maps("dataset.captions.prefix", lambda value: f"{text(value)} "),
    "caption_suffix": Maps("dataset.captions.suffix", lambda value: f" {text(value)}"),
    "caption_dropout_rate": Maps("dataset.caption_dropout", number),
    "caption_dropout_every_n_epochs": Lacks(_ROUND),
    "caption_tag_dropout_rate": Together("dataset.captions.drop"),
    "token_warmup_min": Lacks("All tags are there from the first step.", EVERY),
    "token_warmup_step": Lacks("All tags are there from the first step."),
    "caption_extension": Maps("dataset.caption_extension", text, ".caption", _FIRST_LINE),
    "caption_extention": Together("dataset.caption_extension"),
    "color_aug": Lacks(AUGMENTED),
    "face_crop_aug_range": Lacks(AUGMENTED),
    "random_crop": Lacks("dataset.crop says what is kept; it is the same in every epoch."),
    "flip_aug": Maps("dataset.flip", flag),
    "alpha_mask": Together("dataset.mask.source"),
    "cache_info": Lacks(READER, ANY),
}
"""What an argument, ``general``, a dataset and a subset may say, the last of them first."""

SUBSET: Table = {
    **OF_ALL,
    "image_dir": Together("dataset.path"),
    "metadata_file": Lacks("Write its captions into a metadata.jsonl beside the images."),
    "conditioning_data_dir": Together("dataset.mask_folder"),
    "is_reg": Together("dataset.folders (role)"),
    "class_tokens": Maps("dataset.captions.default", text),
    "num_repeats": Maps("dataset.num_repeats", whole),
    "batch_size": Maps("dataset.batch_size", whole),
    "validation_split": Maps("dataset.validation.share", number),
    "validation_seed": Lacks("The seed of the run draws them.", EVERY),
    "network_multiplier": Lacks("All images train at strength 1.", (None, 1, 1.0)),
    "custom_attributes": Lacks("Images have no attributes of their own."),
    "subsets": Together("dataset.folders"),
}
"""What ``general``, a dataset and a subset say."""

_FILE: Table = {"general": Together("dataset"), "datasets": Together("dataset")}


def read_subsets(name: str, values: Mapping[str, Any], arguments: Source, to: Conversion) -> None:
    """Turn the subsets of all datasets into folders.

    Args:
        name: Of the file.
        values: What it holds.
        arguments: Of the training, which hold where the file says nothing.
        to: Gets the settings.
    """
    top = Source(name, values, _FILE)
    top.tell_unknown(to)
    general = Source(name, top.read("general", mapping, {}), SUBSET, "general.")
    general.tell_unknown(to)
    folders: list[Folder] = []
    for place, each in enumerate(top.read("datasets", mappings, [])):
        dataset = Source(name, each, SUBSET, f"datasets[{place}].")
        dataset.tell_unknown(to)
        for number_, subset in enumerate(dataset.read("subsets", mappings, [])):
            source = Source(name, subset, SUBSET, f"{dataset.prefix}subsets[{number_}].")
            folders.append(_folder(source, (arguments, general, dataset)))
    set_folders(to, folders)


def read_named_folders(arguments: Source, to: Conversion) -> None:
    """Turn ``train_data_dir`` and ``reg_data_dir``, of folders named ``10_name``, into ours."""
    known = {key: value for key, value in arguments.values.items() if key in OF_ALL}
    folders: list[Folder] = []
    for key, role in (("train_data_dir", "train"), ("reg_data_dir", "regularization")):
        if not arguments.given(key):
            continue
        own, path = Conversion(), arguments.read(key, text)
        own.say("dataset.path", path, key, path)
        own.say("dataset.layout", "kohya", key, path, _SOME_CAPTIONS)
        source = Source(arguments.file, known, OF_ALL)
        _read_captions(source, own)
        masked = _read_masks(source, own, key)
        set_reading(own, key, missing_caption="error", subfolders=True, masks=masked)
        folders.append(_with_role(arguments, own, role, key))
    if folders:
        set_folders(to, folders)
    else:
        _read_captions(Source(arguments.file, known, OF_ALL), to)


def _folder(subset: Source, above: Sequence[Source]) -> Folder:
    """A subset as a folder.

    Args:
        subset: What it says itself.
        above: The arguments, ``general`` and its dataset: what each says where the next is silent.
    """
    to, places = Conversion(), {}
    values = dict(subset.values)
    for layer in above[::-1]:
        for key, value in layer.values.items():
            if key in SUBSET and key != "subsets" and values.get(key) is None and value is not None:
                values[key], places[key] = value, layer.prefix
    source = Source(subset.file, values, SUBSET, subset.prefix)
    _read_captions(source, to)
    path = f"{source.prefix}image_dir"
    if source.given("image_dir"):
        folder = source.read("image_dir", text)
        to.say("dataset.path", folder, path, folder)
    masked = _read_masks(source, to, source.prefix.rstrip("."))
    set_reading(to, path, missing_caption="empty", masks=masked)
    role = "regularization" if source.read("is_reg", flag, False) else "train"
    if role != "train":
        near = "There as many of them as of the trained images are taken."
        to.tell("dataset.folders", f"{source.prefix}is_reg", True, near)
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
    if source.given("caption_extention"):
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
        to.say(f"dataset.mask.{setting}", value, f"{key} ({setting})", value, given=False)
    return True
