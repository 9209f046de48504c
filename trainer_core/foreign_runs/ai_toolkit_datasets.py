"""Datasets of ai-toolkit.

Source: ostris/ai-toolkit at 27a03a91, ``DatasetConfig`` of ``toolkit/config_modules.py``.
"""

from __future__ import annotations

from .clips import set_lengths
from .folders import Folder
from .rules import Conversion, Source, flag, number, text, texts, whole
from .vocabulary import set_image_folder, set_reading, set_sizes

_CONTROLS = ("control_path_1", "control_path_2", "control_path_3")


def dataset_folder(
    source: Source, regularization_weight: float, trigger_word: str, *, clips: bool
) -> Folder:
    """One dataset as a folder.

    Args:
        regularization_weight: ``train.reg_weight``.
        clips: Whether it holds clips that are trained.
    """
    to = Conversion()
    source.apply(to)
    key = source.prefix
    if clips:
        set_lengths(source, to)
    _path(source, to)
    _sizes(source, to)
    if source.read("shuffle_tokens", flag, False):
        near = "Another order in each of 8 epochs; there in each step."
        to.say("dataset.captions.shuffle", 8, f"{key}shuffle_tokens", True, near)
    if source.read("use_short_captions", flag, False):
        to.say("dataset.captions.length", "short", f"{key}use_short_captions", True)
    if source.read("alpha_mask", flag, False):
        to.say("dataset.mask.source", "alpha", f"{key}alpha_mask", True)
    elif source.has("mask_path"):
        source.say(to, "dataset.mask_folder", source.read("mask_path", text), "mask_path")
    masked = source.read("alpha_mask", flag, False) or source.has("mask_path")
    if masked:
        weight = source.read("mask_min_value", number, 0.0)
        source.say(to, "dataset.mask.background", weight, "mask_min_value")
    set_reading(to, f"{key}folder_path", missing_caption="empty", subfolders=True, masks=masked)
    reg = source.read("is_reg", flag, False)
    if reg:
        to.tell("dataset.folders", f"{key}is_reg", True)
        if to.values.setdefault("dataset.trigger_word", trigger_word):
            to.values["dataset.captions.add_trigger"] = False
    weight = source.read("loss_multiplier", number, 1.0)
    if weight != 1:
        to.tell("dataset.folders", f"{key}loss_multiplier", weight)
    role = "regularization" if reg else "train"
    return Folder(to, role, weight * (regularization_weight if reg else 1.0), key.rstrip("."))


def _path(source: Source, to: Conversion) -> None:
    # What stands first wins there.
    key = "dataset_path" if source.has("dataset_path") else "folder_path"
    path = source.read(key, text, "")
    numbered = [name for name in _CONTROLS if source.values.get(name)]
    controls = [
        (name, each)
        for name in numbered or ["control_path"]
        for each in source.read(name, texts, [])
        if each
    ]
    entries = [(source.prefix + name, each) for name, each in controls]
    set_image_folder(to, (source.prefix + key, path), entries)


def _sizes(source: Source, to: Conversion) -> None:
    """The largest size is ``resolution``; each image is trained at the others too."""
    found = source.values.get("resolution")
    key = f"{source.prefix}resolution"
    if found is None:
        to.say("dataset.resolution", 512, key, 512, stated=False)
        return
    many = isinstance(found, list)
    read = (lambda value: [whole(each) for each in value]) if many else (lambda v: [whole(v)])
    sizes = sorted(set(source.read("resolution", read)), reverse=True)
    set_sizes(to, sizes, key, found)
