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
        "Use it when the adapter changes what it should leave alone and you have ordinary images "
        "of that: a second folder with images and captions of what the base can do already. They "
        "are trained beside your own, without the trigger word.",
    )
    weight: float = setting(
        1.0,
        "Leave it; lower it when yours are learned too slowly, raise it when the base still "
        "forgets. Weight of the regularization images' loss; your own images have 1.",
        advanced=True,
        ge=0.0,
        le=10.0,
    )
    num_repeats: int = setting(
        1,
        "Leave it at 1; raise it when you have far fewer regularization images than images of "
        "your own. How often each of them appears in an epoch.",
        advanced=True,
        ge=1,
        le=10000,
    )


class PreservationSection(Section):
    """Prior preservation from the base itself: it is held to what it did before training."""

    share: float = setting(
        0.0,
        "Raise it when a few images take over everything, such as every face. Leave it at 0 (off) "
        "otherwise: it slows learning. Share of each batch that holds the base to what it makes "
        "of other prompts; it makes these images before the first step, once for each base and "
        "size.",
        ge=0.0,
        le=0.9,
    )
    prompts: list[str] = setting(
        [],
        "Leave it empty unless you know what must stay as it is. Prompts, for an edit base "
        "instructions, that have nothing to do with what is learned; the base is held to them. "
        "Empty: a general list, for the embedded base one of its own words.",
        advanced=True,
    )
    count: int = setting(
        24,
        "Leave it unless you gave more preservation prompts than this. How many images the base "
        "makes to be held to; prompts take turns.",
        advanced=True,
        ge=1,
        le=1000,
    )
    steps: int = setting(
        12,
        "Leave it; lower it to wait less before the first step. Sampling steps of each image that "
        "the base makes to be held to; each step is one sample.",
        advanced=True,
        ge=1,
        le=100,
    )


class DatasetSection(Section):
    """Which images and captions are trained, and at which size."""

    path: str = setting("", "Set it for every run: the folder with your images and captions.")
    layout: Literal["auto", "flat", "paired", "layered"] = setting(
        "auto",
        "Leave it on auto unless your folder is read wrongly. 'flat': each image beside a text "
        "file of the same name. 'paired': training_images/ with captions, control_images/ of "
        "the same names. 'layered': training_images/ and layers/NAME_0.png, NAME_1.png ... from "
        "the lowest. 'auto' looks which it is.",
        advanced=True,
    )
    caption_extension: str = setting(
        ".txt",
        "Change it only when your captions end in something else, such as .caption. Extension of "
        "the caption files.",
        advanced=True,
        pattern=r"^\.[A-Za-z0-9]+$",
        pattern_in_words="a dot with letters or digits behind it",
    )
    missing_caption: Literal["error", "skip", "empty"] = setting(
        "error",
        "Leave it on error, so that no caption is forgotten; change it when some images have none "
        "on purpose. 'error' stops and names them, 'skip' leaves such an image out, 'empty' "
        "trains it with empty text.",
    )
    missing_image: Policy = setting(
        "error",
        "Leave it on error, so that no image is lost; change it when you removed images on "
        "purpose. A caption without an image: 'error' stops, 'skip' leaves it out.",
        advanced=True,
    )
    missing_control: Policy = setting(
        "error",
        "Leave it on error; change it when some pairs are incomplete on purpose. A training image "
        "without its control image, or the reverse: 'error' stops, 'skip' leaves it out. Only for "
        "bases that edit.",
        advanced=True,
    )
    unreadable: Policy = setting(
        "error",
        "Leave it on error; change it for a large folder in which a few broken files do no harm. "
        "An image that cannot be decoded: 'error' stops, 'skip' leaves it out and says so.",
        advanced=True,
    )
    animated: Literal["error", "skip", "first_frame"] = setting(
        "error",
        "Leave it on error; change it when your folder has GIFs or other animations. An image "
        "with several frames: 'error' stops, 'skip' leaves it out, 'first_frame' uses its first "
        "frame.",
        advanced=True,
    )
    trigger_word: str = setting(
        "",
        "Set it to call up what you train with a word of your own, best one that means nothing "
        "yet. Leave it empty when your captions say it already. It is put in front of every "
        "caption, followed by a comma.",
    )
    num_repeats: int = setting(
        1,
        "Leave it at 1; raise it when you train regularization images beside your own and yours "
        "should come more often. How often each image appears in an epoch, one round through all "
        "of them.",
        ge=1,
        le=10000,
    )
    caption_dropout: float = setting(
        0.0,
        "Leave it at 0 for something that you call by its word; raise it a little for a style "
        "that should come without one. Share of samples trained with an empty caption.",
        ge=0.0,
        le=1.0,
    )
    resolution: int = setting(
        1024,
        "Lower it when memory runs out or a step takes too long; raise it for fine detail, up to "
        "what the base was made for. Training size in pixels: buckets have about resolution x "
        "resolution pixels.",
        ge=32,
        le=4096,
    )
    max_aspect_ratio: float = setting(
        3.0,
        "Leave it unless you train very wide or tall images, such as panoramas, and they are "
        "cropped. Longest side over shortest side of the most extreme bucket.",
        advanced=True,
        ge=1,
        le=8,
    )
    upscale: bool = setting(
        False,
        "Leave it off: small images are trained at their own size. Switch it on when an image is "
        "too small to be trained at all. Enlarges images that are smaller than the training size.",
        advanced=True,
    )
    control_area: int | None = setting(
        None,
        "Leave it unset unless you will use the adapter in Diffusers' edit pipelines, which use "
        "1048576. Pixels of a control image, at its own aspect ratio. Unset: the size of its "
        "target.",
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
        None,
        "Set it to keep encoded images and captions on another disk. Folder of the cache. Unset: "
        "'cache' in the output folder.",
        advanced=True,
    )
    manifest: str | None = setting(
        None,
        "Set it to train without the images and without text encoders, such as on another "
        "machine. A finished cache: the file '*.cache.json' that Save Run File or the verb cache "
        "wrote; it is trained as it is.",
        advanced=True,
    )
    verify: bool = setting(
        False,
        "Leave it off; switch it on once when the disk may have damaged files. Reads every cached "
        "file at the start and encodes damaged ones again.",
        advanced=True,
    )
