"""Datasets of ai-toolkit.

Source: ostris/ai-toolkit at 27a03a91, ``DatasetConfig`` of ``toolkit/config_modules.py``.
"""

from __future__ import annotations

from typing import Any

from .rules import (
    Conversion,
    Lacks,
    Maps,
    Source,
    Table,
    Together,
    flag,
    number,
    text,
    texts,
    whole,
)
from .vocabulary import AUGMENTED, ENCODED, Folder, set_image_folder, set_reading

_VIDEO = "Videos and sounds are not trained here."
_ADAPTERS = "Only adapters of the denoiser are trained here."
_NEIGHBOURS = "An image is no control image of another one."
_READER = "Reading needs no such setting here."


def _extension(value: Any) -> str:
    found = text(value).strip()
    return found if found.startswith(".") else f".{found}"


_CONTROLS = ("control_path_1", "control_path_2", "control_path_3")

TRIGGER = "In front of a caption it is followed by a comma here, there by a blank."

DATASET: Table = {
    "type": Lacks("Only images are trained here.", (None, "image")),
    "folder_path": Together("dataset.path"),
    "dataset_path": Together("dataset.path"),
    "resolution": Together("dataset.resolution, dataset.more_resolutions"),
    "caption_ext": Maps("dataset.caption_extension", _extension),
    "caption_type": Maps("dataset.caption_extension", _extension),
    "default_caption": Maps("dataset.captions.default", text),
    "trigger_word": Maps("dataset.trigger_word", text, near=TRIGGER),
    "caption_dropout_rate": Maps("dataset.caption_dropout", number),
    "shuffle_tokens": Together("dataset.captions.shuffle"),
    "keep_tokens": Maps("dataset.captions.keep", whole),
    "token_dropout_rate": Lacks("Single tags: dataset.captions.drop, with shuffle."),
    "use_short_captions": Together("dataset.captions.length"),
    "num_repeats": Maps("dataset.num_repeats", whole),
    "batch_size": Maps("dataset.batch_size", whole),
    "is_reg": Together("dataset.folders (role)"),
    "prior_reg": Lacks("dataset.preservation holds the base to what it did before."),
    "loss_multiplier": Together("dataset.folders (weight)"),
    "network_weight": Lacks("All images train at strength 1.", (None, 1, 1.0)),
    "buckets": Lacks("Images are always put into buckets of like shape.", (None, True)),
    "bucket_tolerance": Maps("dataset.bucket_step", whole, near="Steps between bucket sides."),
    "flip_x": Maps("dataset.flip", flag),
    "flip_y": Lacks("Images are not turned upside down."),
    "random_crop": Lacks("dataset.crop says what is kept; it is the same in every epoch."),
    "random_scale": Lacks(AUGMENTED),
    "scale": Lacks(AUGMENTED, (None, 1, 1.0)),
    "square_crop": Lacks("Buckets keep the shape of images."),
    "control_path": Together("dataset.control_folders"),
    "control_path_1": Together("dataset.control_folders"),
    "control_path_2": Together("dataset.control_folders"),
    "control_path_3": Together("dataset.control_folders"),
    "control_from_same_folder": Lacks(_NEIGHBOURS),
    "num_controls_from_same_folder": Lacks(_NEIGHBOURS, (None, 1)),
    "full_size_control_images": Lacks(
        "dataset.control_area sets the size of control images.", (None, True, False)
    ),
    "control_transparent_color": Lacks(_READER, (None, [0, 0, 0])),
    "controls": Lacks("Control images are not made here."),
    "inpaint_path": Lacks("Bases that fill read the image's own transparency."),
    "alpha_mask": Together("dataset.mask.source"),
    "mask_path": Together("dataset.mask_folder"),
    "invert_mask": Maps("dataset.mask.invert", flag),
    "mask_min_value": Together("dataset.mask.background"),
    "unconditional_path": Lacks("There are no images for the blank prompt."),
    "random_triggers": Lacks("A trigger word is the same for all; see dataset.captions."),
    "random_triggers_max": Lacks("A trigger word is the same for all.", (None, 1)),
    "replacements": Lacks("Captions are not rewritten here."),
    "diff_output_preservation": Lacks("dataset.preservation holds for all folders."),
    "diff_output_preservation_class": Lacks("dataset.preservation holds for all folders."),
    "extra_values": Lacks(_ADAPTERS),
    "guidance_type": Lacks(_ADAPTERS, (None, "targeted")),
    "clip_image_path": Lacks(_ADAPTERS),
    "clip_image_from_same_folder": Lacks(_ADAPTERS),
    "clip_image_augmentations": Lacks(_ADAPTERS),
    "clip_image_shuffle_augmentations": Lacks(_ADAPTERS),
    "cache_clip_vision_to_disk": Lacks(_ADAPTERS),
    "augments": Lacks(AUGMENTED),
    "augmentations": Lacks(AUGMENTED),
    "shuffle_augmentations": Lacks(AUGMENTED),
    "replay_transforms": Lacks(AUGMENTED, (None, True, False)),
    "standardize_images": Lacks(AUGMENTED),
    **dict.fromkeys(
        (
            *("cache_latents", "cache_latents_to_disk", "cache_tensors_to_disk"),
            *("cache_text_embeddings", "load_image_when_caching_latents"),
        ),
        Lacks(ENCODED, (None, True, False)),
    ),
    **dict.fromkeys(
        ("num_workers", "prefetch_factor", "cache_latents_num_workers", "fast_image_size", "debug"),
        Lacks(_READER, (None, True, False, 0, 1, 2, 3, 4, 6, 8, 16)),
    ),
    "poi": Lacks("That program does not read it any more."),
    "num_frames": Lacks(_VIDEO, (None, 1)),
    **dict.fromkeys(
        (
            *("shrink_video_to_frames", "fps", "auto_frame_count", "trim_auto_frame_count_tail"),
            *("do_i2v", "do_audio", "audio_preserve_pitch", "audio_normalize"),
        ),
        Lacks(_VIDEO, (None, True, False, 24)),
    ),
}


def dataset_folder(source: Source, regularization_weight: float, trigger_word: str) -> Folder:
    """One dataset as a folder.

    Args:
        source: Its keys.
        regularization_weight: ``train.reg_weight``.
        trigger_word: The one of all datasets.
    """
    to = Conversion()
    source.apply(to)
    key = source.prefix
    _path(source, to)
    _sizes(source, to)
    if source.read("shuffle_tokens", flag, False):
        to.say(
            "dataset.captions.shuffle",
            8,
            f"{key}shuffle_tokens",
            True,
            "Another order in each of 8 epochs; there in each step.",
        )
    if source.read("use_short_captions", flag, False):
        to.say("dataset.captions.length", "short", f"{key}use_short_captions", True)
    if source.read("alpha_mask", flag, False):
        to.say("dataset.mask.source", "alpha", f"{key}alpha_mask", True)
    elif source.given("mask_path"):
        source.say(to, "dataset.mask_folder", source.read("mask_path", text), "mask_path")
    masked = source.read("alpha_mask", flag, False) or source.given("mask_path")
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
    key = "dataset_path" if source.given("dataset_path") else "folder_path"
    path = source.read(key, text, "")
    numbered = [name for name in _CONTROLS if source.values.get(name)]
    controls = [
        (name, each)
        for name in numbered or ["control_path"]
        for each in source.read(name, texts, [])
        if each
    ]
    told = [(source.prefix + name, each) for name, each in controls]
    set_image_folder(to, (source.prefix + key, path), told)


def _sizes(source: Source, to: Conversion) -> None:
    """The largest size is ``resolution``; each image is trained at the others too."""
    found = source.values.get("resolution")
    key = f"{source.prefix}resolution"
    if found is None:
        to.say("dataset.resolution", 512, key, 512, given=False)
        return
    many = isinstance(found, list)
    read = (lambda value: [whole(each) for each in value]) if many else (lambda v: [whole(v)])
    sizes = sorted(set(source.read("resolution", read)), reverse=True)
    if not sizes:
        return
    to.say("dataset.resolution", sizes[0], key, found)
    if sizes[1:]:
        to.say("dataset.more_resolutions", sizes[1:], key, found)
