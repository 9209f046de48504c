"""Settings of a dataset that both dataset nodes show."""

from __future__ import annotations

from .setting_inputs import SettingInput

READING = (
    SettingInput("dataset.layout"),
    SettingInput("dataset.resolution"),
    SettingInput("dataset.trigger_word"),
    SettingInput("dataset.caption_dropout"),
    SettingInput("dataset.num_repeats"),
    SettingInput("dataset.missing_caption", advanced=True),
    SettingInput("dataset.missing_image", advanced=True),
    SettingInput("dataset.missing_control", advanced=True),
    SettingInput("dataset.unreadable", advanced=True),
    SettingInput("dataset.animated", advanced=True),
    SettingInput("dataset.caption_extension"),
    SettingInput("dataset.max_aspect_ratio"),
    SettingInput("dataset.upscale"),
    SettingInput("dataset.control_area"),
)
KEEPING = (
    SettingInput("dataset.preservation.share", "preservation", optional=True),
    SettingInput(
        "dataset.preservation.prompts", "preservation_prompts", advanced=True, optional=True
    ),
    SettingInput("dataset.preservation.count", "preservation_count", optional=True),
    SettingInput("dataset.preservation.steps", "preservation_steps", optional=True),
)
SIZING = tuple(
    each
    for each in READING
    if each.id
    in {
        "resolution",
        "trigger_word",
        "caption_dropout",
        "num_repeats",
        "max_aspect_ratio",
        "upscale",
        "control_area",
    }
)
