"""Datasets of musubi-tuner: a TOML of its own.

Source: kohya-ss/musubi-tuner at 30c658c4, ``dataset/config_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from .rules import (
    Conversion,
    Lacks,
    Maps,
    Source,
    Table,
    Together,
    flag,
    mapping,
    mappings,
    text,
    whole,
)
from .vocabulary import Folder, set_folders, sides

_VIDEO = "Videos are not trained here."
_PAIRS = (
    "Put both into one folder, as training_images and control_images, and name that as "
    "dataset.path."
)

_SHARED: Table = {
    "resolution": Maps(
        "dataset.resolution", sides, 723, "Buckets have as many pixels as width x height."
    ),
    "enable_bucket": Lacks("Images are always put into buckets of like shape.", (None, True)),
    "bucket_no_upscale": Together("dataset.upscale"),
    "caption_extension": Maps("dataset.caption_extension", text),
    "batch_size": Maps("dataset.batch_size", whole, 1),
    "num_repeats": Maps("dataset.num_repeats", whole),
}

GENERAL: Table = _SHARED

DATASET: Table = {
    **_SHARED,
    "image_directory": Together("dataset.path"),
    "image_jsonl_file": Lacks(
        "A metadata.jsonl in the folder lists images here (dataset.metadata)."
    ),
    "control_directory": Together("dataset.path"),
    "cache_directory": Maps("cache.dir", text, near="One folder for all datasets."),
    "multiple_target": Lacks("Layers of an image lie in layers/NAME_0.png and so on."),
    "no_resize_control": Lacks("Control images have the size of their target."),
    "control_resolution": Together("dataset.control_area"),
    "debug_dataset": Lacks("The verb dataset reports on it.", (None, True, False)),
    **dict.fromkeys(
        (
            *("video_directory", "video_jsonl_file", "target_frames", "frame_extraction"),
            *("frame_stride", "frame_sample", "max_frames", "source_fps"),
            *("fp_latent_window_size", "fp_1f_clean_indices", "fp_1f_target_index"),
            "fp_1f_no_post",
        ),
        Lacks(_VIDEO),
    ),
}


def read_datasets(name: str, values: Mapping[str, Any], to: Conversion) -> None:
    """Turn datasets into folders.

    Args:
        name: Of the file.
        values: What it holds.
        to: Gets the settings.
    """
    top = Source(name, values, {"general": Together("dataset"), "datasets": Together("dataset")})
    for key in top.values.keys() - top.table.keys():
        to.unknown(key, top.values[key])
    general = top.read("general", mapping, {})
    outside = Source(name, general, GENERAL, "general.")
    for key in outside.values.keys() - GENERAL.keys():
        to.unknown(f"general.{key}", outside.values[key])
    shared = {key: value for key, value in general.items() if key in GENERAL}
    folders = [
        _folder(Source(name, {**shared, **each}, DATASET, f"datasets[{place}]."), to)
        for place, each in enumerate(top.read("datasets", mappings, []))
    ]
    set_folders(to, folders)


def _folder(source: Source, whole_run: Conversion) -> Folder:
    to = Conversion()
    source.apply(to)
    if "cache.dir" in to.values:
        whole_run.values.setdefault("cache.dir", to.values.pop("cache.dir"))
    key = source.prefix
    upscale = not source.read("bucket_no_upscale", flag, False)
    to.say(
        "dataset.upscale",
        upscale,
        f"{key}bucket_no_upscale",
        not upscale,
        given=source.given("bucket_no_upscale"),
    )
    if source.given("control_resolution"):
        side = source.read("control_resolution", sides)
        to.say(
            "dataset.control_area",
            side * side,
            f"{key}control_resolution",
            source.values["control_resolution"],
        )
    image = source.read("image_directory", text, "")
    control = source.read("control_directory", text, "")
    one, other = PurePath(image), PurePath(control)
    paired = (one.name, other.name) == ("training_images", "control_images")
    if control and paired and one.parent == other.parent:
        to.say("dataset.path", str(one.parent), f"{key}image_directory", image)
        to.say("dataset.layout", "paired", f"{key}control_directory", control)
    elif image:
        to.say("dataset.path", image, f"{key}image_directory", image, _PAIRS if control else "")
        if control:
            to.lack(f"{key}control_directory", control, _PAIRS)
    return Folder(to, key=key.rstrip("."))
