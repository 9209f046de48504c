"""Settings of the training images, and of the cache of what is encoded of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .captions import CaptionSection
from .folders import FolderSection, Layout, MissingCaption
from .masks import MaskSection
from .preservation import PreservationSection
from .section import Section, setting
from .slider import SliderSection
from .validation import ValidationSection

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


class DatasetSection(Section):
    """Which images and captions are trained, and at which size."""

    path: str = setting("", "Set it for every run: the folder with your images and captions.")
    folders: list[FolderSection] = setting(
        [],
        "Leave it empty unless your images lie in several folders. Further folders, as [{path: "
        "folder, role: train, weight: 1.0}]; each may say otherwise than 'dataset' what its "
        "resolution, num_repeats, batch_size, trigger_word, captions and layout are.",
        advanced=True,
    )
    layout: Layout = setting(
        "auto",
        "Leave it on auto unless your folder is read wrongly. 'flat': each image beside its "
        "caption. 'paired': training_images/ and control_images/ of the same names. 'layered': "
        "training_images/ and layers/NAME_0.png ... 'kohya': folders named 10_name. 'metadata': a "
        "metadata file lists the images.",
        advanced=True,
    )
    subfolders: bool = setting(
        True,
        "Leave it on; switch it off when the folder holds others that are not to be trained. Reads "
        "images in sub-folders, too.",
        advanced=True,
    )
    control_folders: list[str] = setting(
        [],
        "Leave it empty unless control images lie somewhere else than in control_images. Folders "
        "of control images that have the names of their training images; the second holds the "
        "second control image of each, and so on.",
        advanced=True,
    )
    mask_folder: str = setting(
        "",
        "Leave it empty unless masks lie somewhere else than beside the images or in masks. A "
        "folder of masks that have the names of their images.",
        advanced=True,
    )
    metadata: str | None = setting(
        None,
        "Leave it unset unless the folder's metadata file has an unusual name. A .jsonl, .csv or "
        ".parquet file in the folder that lists image, caption, control, mask, repeats and "
        "weight. Unset: metadata.jsonl, .csv or .parquet where there is one.",
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
    missing_caption: MissingCaption = setting(
        "error",
        "Leave it on error, so that no caption is forgotten; change it when some images have none "
        "on purpose. 'error' stops and names them, 'skip' leaves such an image out, 'empty' "
        "trains it with empty text, 'filename' with the file's name. dataset.captions.default is "
        "used before any of these.",
    )
    missing_image: Policy = setting(
        "error",
        "Leave it on error, so that no image is lost; change it when you removed images on "
        "purpose. A caption without an image: 'error' stops, 'skip' leaves it out.",
        advanced=True,
    )
    missing_control: Literal["error", "skip", "without"] = setting(
        "error",
        "Leave it on error; change it when some pairs are incomplete on purpose. A training image "
        "without its control image, or the reverse: 'error' stops, 'skip' leaves it out, 'without' "
        "trains the image without one. Only for bases that edit.",
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
        "yet. It stands for [trigger] in captions, and is put in front of each caption that does "
        "not have it, followed by a comma.",
    )
    num_repeats: int = setting(
        1,
        "Leave it at 1; raise it when you train regularization images beside your own and yours "
        "should come more often. How often each image appears in an epoch, one round through all "
        "of them.",
        advanced=True,
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
    captions: CaptionSection = Field(
        default_factory=CaptionSection,
        description="What becomes of a caption before it is encoded.",
    )
    control_dropout: float = setting(
        0.0,
        "Leave it at 0; raise it a little when the adapter of an edit base should also work "
        "without a control image. Share of batches trained without their control images, also in "
        "what the text encoder sees.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
    mask: MaskSection = Field(
        default_factory=MaskSection,
        description="Which part of an image counts how much.",
    )
    flip: bool = setting(
        False,
        "Leave it off for anything that has a left and a right, such as text or a face; switch it "
        "on for few images of things that have none. Each image is trained as it is and mirrored.",
        advanced=True,
    )
    flip_except: list[str] = setting(
        ["left", "right", "text", "letter", "letters", "word", "words", "logo", "sign", "number"],
        "Change it when your captions have other words that would be wrong of a mirrored image. "
        "An image whose caption has one of these words is never mirrored.",
        advanced=True,
    )
    crop: Literal["center", "top", "mask", "stretch"] = setting(
        "center",
        "Leave it on center; take top when heads are cut off. What is kept of an image that does "
        "not fit its bucket: the 'center', the 'top', the part around its 'mask'; 'stretch' "
        "keeps all and distorts.",
        advanced=True,
    )
    resolution: int = setting(
        1024,
        "Lower it when memory runs out or a step takes too long; raise it for fine detail, up to "
        "what the base was made for. Training size in pixels: buckets have about resolution x "
        "resolution pixels.",
        ge=32,
        le=4096,
    )
    more_resolutions: list[int] = setting(
        [],
        "Leave it empty; list smaller sizes, such as 512 and 768, when the adapter is used at "
        "several. Each image is then trained at each of these sizes, too; none is enlarged for "
        "it.",
        advanced=True,
    )
    more_shapes: list[str] = setting(
        [],
        "Leave it empty; list shapes, such as 16:9, 1:1 and 4:3, when your images have one shape "
        "and the adapter is used at others. Each image is then trained cut to each of these "
        "shapes, too; its caption should fit what is left.",
        advanced=True,
    )
    bucketing: Literal["area", "longest_side"] = setting(
        "area",
        "Leave it on area. 'area': buckets of about resolution x resolution pixels. "
        "'longest_side': each image keeps its shape, its longest side becomes 'resolution', and "
        "both sides are cut to multiples of 32, as FlyMyAI's trainer does.",
        advanced=True,
    )
    bucket_step: int | None = setting(
        None,
        "Leave it unset; raise it for fewer, larger buckets when batches stay small. Sides of "
        "buckets are multiples of it, in pixels. Unset: what the family can train.",
        advanced=True,
        ge=8,
        le=512,
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
    batch_size: int | None = setting(
        None,
        "Leave it unset: training.batch_size. How many images share a batch; a folder of small "
        "images may have more.",
        advanced=True,
        ge=1,
        le=1024,
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
    validation: ValidationSection = Field(
        default_factory=ValidationSection,
        description="Images that are never trained on, to measure the loss on.",
    )
    preservation: PreservationSection = Field(
        default_factory=PreservationSection,
        description="What keeps the base from forgetting, without any further image.",
    )
    slider: SliderSection = Field(
        default_factory=SliderSection,
        description="A slider between prompts, which is trained without images.",
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
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "Leave it on auto. Number format of cached latents and texts. 'auto': that of the "
        "encoders. 'fp32' is exact and largest; 'bf16' and 'fp16' take half of that; 'fp16' fails "
        "where an encoder's numbers are too large for it, and says so.",
        advanced=True,
    )
    batch_size: int = setting(
        1,
        "Leave it at 1; raise it to encode faster on a GPU with room. How many images of a size, "
        "and how many captions, are encoded at a time.",
        advanced=True,
        ge=1,
        le=256,
    )
    max_gb: float | None = setting(
        None,
        "Leave it unset, or set it when the disk gets full. The most gigabytes that the cache may "
        "take: what was not used for longest is removed at the end of encoding, never what this "
        "run or another one at work needs.",
        advanced=True,
        gt=0.0,
        le=1e5,
    )
