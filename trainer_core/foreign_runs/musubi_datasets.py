"""Datasets of musubi-tuner: a TOML of its own.

Source: kohya-ss/musubi-tuner at 30c658c4, ``dataset/config_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .kohya_keys import MUSUBI
from .rules import (
    Conversion,
    Source,
    Together,
    flag,
    mapping,
    mappings,
    text,
)
from .vocabulary import Folder, set_folders, set_image_folder, set_reading, set_table, sides


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
    outside = Source(name, general, MUSUBI["general"], "general.")
    outside.tell_unknown(to)
    shared = {key: value for key, value in general.items() if key in MUSUBI["general"]}
    folders = [
        _folder(Source(name, {**shared, **each}, MUSUBI["datasets"], f"datasets[{place}]."), to)
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
