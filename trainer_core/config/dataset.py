"""Settings of the training pictures."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting

Policy = Literal["error", "skip"]


class DatasetSection(Section):
    """Which pictures and captions are trained, and at which size."""

    path: str = setting("", "The folder with pictures and captions.")
    layout: Literal["auto", "flat", "paired"] = setting(
        "auto",
        "'flat': each picture beside a text file of the same name. 'paired': training_images/ with "
        "captions and control_images/ with pictures of the same names. 'auto' looks which it is.",
    )
    caption_extension: str = setting(
        ".txt",
        "Extension of the caption files.",
        advanced=True,
        pattern=r"^\.[A-Za-z0-9]+$",
        pattern_in_words="a dot with letters or digits behind it",
    )
    missing_caption: Literal["error", "skip", "empty"] = setting(
        "error", "A picture without a caption: stop, leave it out, or train it with empty text."
    )
    missing_image: Policy = setting("error", "A caption without a picture: stop, or leave it out.")
    missing_control: Policy = setting(
        "error", "A training picture without its control picture, or the reverse: stop or skip."
    )
    unreadable: Policy = setting(
        "error", "A picture that cannot be decoded: stop, or leave it out and say so."
    )
    animated: Literal["error", "skip", "first_frame"] = setting(
        "error", "A picture with several frames: stop, leave it out, or use its first frame."
    )
    trigger_word: str = setting("", "Put in front of every caption, followed by a comma.")
    num_repeats: int = setting(1, "How often each sample appears in an epoch.", ge=1, le=10000)
    caption_dropout: float = setting(
        0.0, "Share of samples trained with an empty caption.", ge=0.0, le=1.0
    )
    resolution: int = setting(
        1024,
        "Training size in pixels: buckets have about resolution x resolution pixels.",
        ge=32,
        le=4096,
    )
    max_aspect_ratio: float = setting(
        3.0,
        "Longest side over shortest side of the most extreme bucket.",
        advanced=True,
        ge=1,
        le=8,
    )
    upscale: bool = setting(
        False, "Enlarge pictures that are smaller than the training size.", advanced=True
    )
    control_area: int | None = setting(
        None,
        "Pixels of a control picture, at its own aspect ratio. Unset: the size of its target. "
        "Diffusers' edit pipelines use 1048576.",
        advanced=True,
        ge=1024,
        le=16777216,
    )
