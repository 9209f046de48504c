"""Datasets of musubi-tuner: a TOML of its own.

Source: kohya-ss/musubi-tuner at 30c658c4, ``dataset/config_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from .vocabulary import Folder, set_folders, set_image_folder, set_reading, set_table, sides

_VIDEO = "Videos are not trained here."

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
    "image_jsonl_file": Together("dataset.metadata"),
    "control_directory": Together("dataset.control_folders"),
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
    top.tell_unknown(to)
    general = top.read("general", mapping, {})
    outside = Source(name, general, GENERAL, "general.")
    outside.tell_unknown(to)
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
    source.say(to, "dataset.upscale", upscale, "bucket_no_upscale", not upscale)
    if source.given("control_resolution"):
        side = source.read("control_resolution", sides)
        said = source.values["control_resolution"]
        source.say(to, "dataset.control_area", side * side, "control_resolution", said)
    image = source.read("image_directory", text, "")
    control = source.read("control_directory", text, "")
    controls = [(f"{key}control_directory", control)] if control else []
    set_image_folder(to, (f"{key}image_directory", image), controls)
    if image:
        set_reading(to, f"{key}image_directory", missing_caption="skip")
    elif source.given("image_jsonl_file"):
        set_table(to, f"{key}image_jsonl_file", source.read("image_jsonl_file", text))
    return Folder(to, key=key.rstrip("."))
