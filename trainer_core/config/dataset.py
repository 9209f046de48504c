"""Settings of the training images, and of the cache of what is encoded of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section, setting

Policy = Literal["error", "skip"]


class RegularizationSection(Section):
    """A second folder of ordinary images, which keeps the base from forgetting them."""

    path: str = setting(
        "",
        "Regularization images: a second folder with images and captions of what the base can do "
        "already. They are trained beside your own, without the trigger word.",
    )
    weight: float = setting(
        1.0, "Weight of their loss; your own images have 1.", advanced=True, ge=0.0, le=10.0
    )
    num_repeats: int = setting(
        1, "How often each of them appears in an epoch.", advanced=True, ge=1, le=10000
    )


class PreservationSection(Section):
    """Prior preservation from the base itself: it is held to what it did before training."""

    share: float = setting(
        0.0,
        "Share of each batch that holds the base to its own behaviour on other prompts, so that "
        "few images do not take over everything. 0: off. Higher keeps more and learns more "
        "slowly. Before the first step the base makes what it is held to, once for each base and "
        "size.",
        ge=0.0,
        le=0.9,
    )
    prompts: list[str] = setting(
        [],
        "What the base is held to: prompts, for an edit base instructions, that have nothing to do "
        "with what is learned. Empty: a general list, for the embedded base one of its own words.",
        advanced=True,
    )
    count: int = setting(
        24,
        "How many images the base makes for this; prompts take turns.",
        advanced=True,
        ge=1,
        le=1000,
    )
    steps: int = setting(
        12, "Sampling steps of each of them; each step is one sample.", advanced=True, ge=1, le=100
    )


class DatasetSection(Section):
    """Which images and captions are trained, and at which size."""

    path: str = setting("", "The folder with images and captions.")
    layout: Literal["auto", "flat", "paired"] = setting(
        "auto",
        "'flat': each image beside a text file of the same name. 'paired': training_images/ with "
        "captions and control_images/ with images of the same names. 'auto' looks which it is.",
        advanced=True,
    )
    caption_extension: str = setting(
        ".txt",
        "Extension of the caption files.",
        advanced=True,
        pattern=r"^\.[A-Za-z0-9]+$",
        pattern_in_words="a dot with letters or digits behind it",
    )
    missing_caption: Literal["error", "skip", "empty"] = setting(
        "error", "An image without a caption: stop, leave it out, or train it with empty text."
    )
    missing_image: Policy = setting(
        "error", "A caption without an image: stop, or leave it out.", advanced=True
    )
    missing_control: Policy = setting(
        "error",
        "A training image without its control image, or the reverse: stop or skip.",
        advanced=True,
    )
    unreadable: Policy = setting(
        "error", "An image that cannot be decoded: stop, or leave it out and say so.", advanced=True
    )
    animated: Literal["error", "skip", "first_frame"] = setting(
        "error",
        "An image with several frames: stop, leave it out, or use its first frame.",
        advanced=True,
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
        False, "Enlarge images that are smaller than the training size.", advanced=True
    )
    control_area: int | None = setting(
        None,
        "Pixels of a control image, at its own aspect ratio. Unset: the size of its target. "
        "Diffusers' edit pipelines use 1048576.",
        advanced=True,
        ge=1024,
        le=16777216,
    )
    regularization: RegularizationSection = Field(
        default_factory=RegularizationSection,
        description="Ordinary images that are trained beside the own ones.",
    )
    preservation: PreservationSection = Field(
        default_factory=PreservationSection,
        description="What keeps the base from forgetting, without any further image.",
    )


class CacheSection(Section):
    """Where encoded images and captions are kept between runs."""

    dir: str | None = setting(
        None, "Folder of the cache. Unset: 'cache' in the output folder.", advanced=True
    )
    manifest: str | None = setting(
        None,
        "A finished cache: the file '*.cache.json' that Save Run File or the verb cache wrote. It "
        "is trained as it is, without the images and without text encoders.",
        advanced=True,
    )
    verify: bool = setting(
        False,
        "Read every cached file once at the start and encode damaged ones again.",
        advanced=True,
    )
