"""Settings of the training images, and the folders that they lie in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .folders import (
    OVERRIDES,
    CaptionSection,
    FolderSection,
    Layout,
    MaskSection,
    MissingCaption,
    Role,
    extension_problems,
    own_name,
)
from .preservation import PreservationSection, RegularizationSection
from .section import Other, Problem, Section, section, setting
from .slider import SliderSection
from .yaml_dialect import value_in_words

Policy = Literal["error", "skip"]
_SMALLEST, _LARGEST = 32, 4096
_SHAPE = re.compile(r"[1-9][0-9]{0,3}:[1-9][0-9]{0,3}")


class ValidationSection(Section):
    """Images that are never trained on, and how often the loss is measured on them."""

    share: float = setting(
        0.0,
        "Set it to about 0.1 when you have some hundred images, to see when the adapter only "
        "learns them by heart. Share of the own images that is held out, the same ones in each "
        "run of a seed. 0: none but those of folders with role validation.",
        ge=0.0,
        le=0.5,
    )
    every: int = setting(
        100,
        "Leave it; raise it when measuring takes too long. Steps between two measurements of the "
        "loss on held-out images, and on as many trained ones; the first is before step 1. A "
        "checkpoint is written where it is lowest.",
        advanced=True,
        ge=1,
        resumed="around",
    )
    most: int = setting(
        32,
        "Leave it; raise it for a steadier number. The most held-out images that are measured; of "
        "more than that, the same ones each time.",
        advanced=True,
        ge=1,
        le=100000,
        resumed="around",
    )
    noise_levels: int = setting(
        4,
        "Leave it; raise it for a steadier number. At how many noise levels each held-out image "
        "is measured; noise and levels are the same each time.",
        advanced=True,
        ge=1,
        le=100,
        resumed="around",
    )


class DatasetSection(Section):
    """Which images and captions are trained, and at which size."""

    path: str = setting(
        "",
        "Set it for every run: the folder with your images and captions.",
        path="anchored",
        no_paths=("",),
        resumed="free",
    )
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
        not_with=Other(
            "base.variant",
            "generate",
            of=("paired",),
            such_as="edit",
            because="control images need a base that edits",
        ),
    )
    subfolders: bool = setting(
        True,
        "Leave it on; switch it off when the folder holds others that are not to be trained. Reads "
        "images in sub-folders, too.",
        advanced=True,
        resumed="free",
    )
    control_folders: list[str] = setting(
        [],
        "Leave it empty unless control images lie somewhere else than in control_images. Folders "
        "of control images that have the names of their training images; the second holds the "
        "second control image of each, and so on.",
        advanced=True,
        path="anchored",
        resumed="free",
    )
    mask_folder: str = setting(
        "",
        "Leave it empty unless masks lie somewhere else than beside the images or in masks. A "
        "folder of masks that have the names of their images.",
        advanced=True,
        path="anchored",
        no_paths=("",),
        resumed="free",
    )
    metadata: str | None = setting(
        None,
        "Leave it unset unless the folder's metadata file has an unusual name. A .jsonl, .csv or "
        ".parquet file in the folder that lists image, caption, control, mask, repeats and "
        "weight. Unset: metadata.jsonl, .csv or .parquet where there is one.",
        advanced=True,
        path="as written",
        resumed="free",
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
        resumed="free",
    )
    missing_image: Policy = setting(
        "error",
        "Leave it on error, so that no image is lost; change it when you removed images on "
        "purpose. A caption without an image: 'error' stops, 'skip' leaves it out.",
        advanced=True,
        resumed="free",
    )
    missing_control: Literal["error", "skip", "without"] = setting(
        "error",
        "Leave it on error; change it when some pairs are incomplete on purpose. A training image "
        "without its control image, or the reverse: 'error' stops, 'skip' leaves it out, 'without' "
        "trains the image without one. Only for bases that edit.",
        advanced=True,
        resumed="free",
    )
    unreadable: Policy = setting(
        "error",
        "Leave it on error; change it for a large folder in which a few broken files do no harm. "
        "An image that cannot be decoded: 'error' stops, 'skip' leaves it out and says so.",
        advanced=True,
        resumed="free",
    )
    animated: Literal["error", "skip", "first_frame"] = setting(
        "error",
        "Leave it on error; change it when your folder has GIFs or other animations. An image "
        "with several frames: 'error' stops, and a base of videos trains it as a clip; 'skip' "
        "leaves it out, 'first_frame' uses its first frame.",
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
    captions: CaptionSection = section(
        CaptionSection, "What becomes of a caption before it is encoded."
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
    mask: MaskSection = section(MaskSection, "Which part of an image counts how much.")
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
        not_with=Other(
            "dataset.mask.source",
            "none",
            of=("mask",),
            such_as="auto",
            because="masks say what of an image is kept",
        ),
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
        not_with=Other(
            "bucketing",
            "longest_side",
            such_as="area",
            because="with it each image keeps its shape",
        ),
    )
    upscale: bool = setting(
        False,
        "Leave it off: small images are trained at their own size. Switch it on when an image is "
        "too small to be trained at all. Enlarges images that are smaller than the training size.",
        advanced=True,
    )
    frames: int = setting(
        33,
        "Raise it for longer motion, where memory allows. For bases of videos: the most frames of "
        "a clip that are trained at once; the base's own lengths up to it are taken, and a longer "
        "clip is cut into equal parts.",
        ge=1,
        le=1025,
    )
    fps: float | None = setting(
        None,
        "Leave it unset: motion then has the speed that the base was trained at. Frames per second "
        "that are taken of a clip; by time, so that nothing is slowed down.",
        advanced=True,
        gt=0.0,
        le=120.0,
    )
    max_clips: int = setting(
        16,
        "Lower it when one long clip should not outweigh the others. The most parts that a clip is "
        "cut into, from its start.",
        advanced=True,
        ge=1,
        le=10000,
    )
    start_frame: float | None = setting(
        None,
        "Set it where you will generate from an image with a base that makes clips of texts, too. "
        "Share of the samples of clips whose first frame the base is given. Unset: all of them for "
        "a base that always begins with an image, none for others.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
    end_frame: float = setting(
        0.0,
        "Set it where you will generate between two images. Share of the samples of clips whose "
        "last frame the base is given beside the first one.",
        advanced=True,
        ge=0.0,
        le=1.0,
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
        not_with=Other(
            "base.variant",
            "generate",
            such_as="edit",
            because="control images need a base that edits",
        ),
    )
    regularization: RegularizationSection = section(
        RegularizationSection, "Ordinary images that are trained beside the own ones."
    )
    validation: ValidationSection = section(
        ValidationSection, "Images that are never trained on, to measure the loss on."
    )
    preservation: PreservationSection = section(
        PreservationSection, "What keeps the base from forgetting, without any further image."
    )
    slider: SliderSection = section(
        SliderSection, "A slider between prompts, which is trained without images."
    )

    def problems(self, *, from_cache: bool) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields.

        A finished cache needs no folders.
        """
        if self.folders and not self.path and not from_cache:
            yield Problem(
                f"dataset.folders names {len(self.folders)} folder(s) and dataset.path is empty",
                "the first folder in dataset.path, and further ones in dataset.folders",
                "Move the first folder of dataset.folders to dataset.path.",
            )
        blank = [number for number, word in enumerate(self.flip_except) if not word.strip()]
        if blank:
            yield Problem(
                f"dataset.flip_except[{blank[0]}] is empty",
                "words of captions",
                "Remove it; [] lets every image be mirrored.",
            )
        if not self.holds_out and self.validation != ValidationSection() and not from_cache:
            yield Problem(
                "dataset.validation has settings and no image is held out",
                "every, most and noise_levels only with a share above 0, or with a folder of role "
                "validation",
                "Set dataset.validation.share, or leave the section out.",
            )
        if self.start_frame is not None and self.end_frame > self.start_frame:
            yield Problem(
                f"dataset.end_frame is {self.end_frame:g} and dataset.start_frame is "
                f"{self.start_frame:g}",
                "a share of the samples that are given their first frame",
                "Raise dataset.start_frame, or lower dataset.end_frame.",
            )
        yield from self.mask.problems()
        yield from _size_problems(self)
        yield from _folder_problems(self)
        yield from _preservation_problems(self)
        yield from self.slider.problems()
        if self.slider.is_on:
            yield from _not_of_a_slider(self)

    @property
    def holds_out(self) -> bool:
        """Whether some images are held out."""
        return self.validation.share > 0 or any(e.role == "validation" for e in self.folders)


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """One folder with the settings that hold for it.

    Attributes:
        place: The setting that names it, such as ``dataset.folders[0].path``; for messages.
        role: What its images are for.
        weight: Factor on its images' loss.
        settings: As ``dataset``, with what the folder says otherwise; ``path`` is the folder, and
            no further folders are in it.
    """

    place: str
    role: Role
    weight: float
    settings: DatasetSection


def dataset_folders(dataset: DatasetSection) -> tuple[DatasetFolder, ...]:
    """All folders of a dataset, in the order in which `Sample.folder` counts them.

    ``dataset.path``, also where it is empty, as beside a finished cache; then ``dataset.folders``;
    then ``dataset.regularization`` where it has a path.
    """
    return tuple(_folders(dataset))


def _folders(dataset: DatasetSection) -> Iterator[DatasetFolder]:
    alone = dataset.model_copy(
        update={"folders": [], "regularization": type(dataset.regularization)()}
    )
    yield DatasetFolder("dataset.path", "train", 1.0, alone)
    # Files and folders of the first one say nothing about the others.
    other = alone.model_copy(update={"metadata": None, "control_folders": [], "mask_folder": ""})
    # Ordinary images need no masks because your own have some.
    plain = "auto" if other.mask.source == "files" else other.mask.source
    for index, folder in enumerate(dataset.folders):
        values = {name: getattr(folder, own_name(name)) for name in OVERRIDES}
        own = {name: value for name, value in values.items() if value is not None}
        if folder.role == "regularization":
            own = {"trigger_word": "", "mask.source": plain} | own
        if (source := own.pop("mask.source", None)) is not None:
            own["mask"] = other.mask.model_copy(update={"source": source})
        own |= {"path": folder.path, "metadata": folder.metadata}
        settings = other.model_copy(update=own)
        yield DatasetFolder(f"dataset.folders[{index}].path", folder.role, folder.weight, settings)
    ordinary = dataset.regularization
    if ordinary.path:
        own = {"path": ordinary.path, "num_repeats": ordinary.num_repeats, "trigger_word": ""}
        own["mask"] = other.mask.model_copy(update={"source": plain})
        settings = other.model_copy(update=own)
        where = "dataset.regularization.path"
        yield DatasetFolder(where, "regularization", ordinary.weight, settings)


def _folder_problems(dataset: DatasetSection) -> Iterator[Problem]:
    """What contradicts itself within a folder."""
    folders = {f"dataset.folders[{n}]": folder for n, folder in enumerate(dataset.folders)}
    for place, folder in {"dataset": dataset, **folders}.items():
        layout = folder.layout or dataset.layout
        yield from extension_problems(f"{place}.caption_extension", folder.caption_extension)
        if folder.captions is not None:
            yield from folder.captions.problems(f"{place}.captions")
        if folder.metadata is not None and layout not in {"auto", "metadata"}:
            yield Problem(
                f"{place}.metadata is set and its layout is {layout}",
                "a metadata file only with layout auto or metadata",
                f"Leave {place}.metadata out, or set {place}.layout to metadata.",
            )
        if folder.control_folders and layout in {"paired", "layered", "metadata"}:
            yield Problem(
                f"{place}.control_folders is set and its layout is {layout}",
                "control images in one way",
                f"Leave {place}.control_folders out, or set {place}.layout to flat.",
            )
        further = folder.more_resolutions or []
        first = folder.resolution or dataset.resolution
        yield from _more_resolutions(f"{place}.more_resolutions", further, first)
        yield from _more_shapes(place, folder.more_shapes or (), dataset)


def _more_resolutions(place: str, further: Sequence[int], first: int) -> Iterator[Problem]:
    known = {first}
    for number, resolution in enumerate(further):
        where = f"{place}[{number}]: {resolution}"
        if not _SMALLEST <= resolution <= _LARGEST:
            yield Problem(
                where,
                f"a number from {_SMALLEST} to {_LARGEST}, in pixels",
                f"Take it out of {place}, or set a size that can be trained.",
            )
        elif resolution in known:
            yield Problem(
                f"{where}, which is a training size already",
                f"sizes beside resolution, which is {first}, each named once",
                f"Take it out of {place}.",
            )
        known.add(resolution)


def _more_shapes(place: str, shapes: Sequence[str], dataset: DatasetSection) -> Iterator[Problem]:
    widest = dataset.max_aspect_ratio
    for number, shape in enumerate(shapes):
        where = f"{place}.more_shapes[{number}]: {shape}"
        sides = [int(side) for side in shape.split(":")] if _SHAPE.fullmatch(shape) else []
        if not sides:
            yield Problem(
                where,
                "width and height as whole numbers with a colon between, such as 16:9",
                f"Correct it, or take it out of {place}.more_shapes.",
            )
        elif dataset.bucketing == "area" and max(sides) > widest * min(sides):
            yield Problem(
                f"{where}, and dataset.max_aspect_ratio is {widest:g}",
                "shapes that a bucket may have",
                "Raise dataset.max_aspect_ratio, or take a less extreme shape.",
            )


def _size_problems(dataset: DatasetSection) -> Iterator[Problem]:
    step = dataset.bucket_step
    sizes = [dataset.resolution, *(each.resolution or step or 0 for each in dataset.folders)]
    if step is not None and step > min(sizes):
        yield Problem(
            f"dataset.bucket_step is {step} and a resolution is {min(sizes)}",
            "a step of at most the resolution: sides of buckets are multiples of it",
            f"Lower dataset.bucket_step to {min(sizes)} or less, or leave it out.",
        )


def _preservation_problems(dataset: DatasetSection) -> Iterator[Problem]:
    kept, word = dataset.preservation, dataset.preservation.class_word.strip()
    if kept.holds("class", "output") and not word:
        yield Problem(
            f"dataset.preservation.kind is {kept.kind} and dataset.preservation.class_word is "
            "empty",
            "the ordinary word for what is trained",
            "Set dataset.preservation.class_word, such as 'woman', or dataset.preservation.kind "
            "to trajectory.",
        )
    trained = [each.settings for each in dataset_folders(dataset) if each.role == "train"]
    triggers = [each.trigger_word.strip() for each in trained]
    if kept.holds("output") and word and not any(triggers):
        yield Problem(
            "dataset.preservation.kind is output and dataset.trigger_word is empty",
            "a trigger word, in the place of which the base is given the class word",
            "Set dataset.trigger_word, or dataset.preservation.kind to blank or class.",
        )
    if kept.holds("output") and word and word.casefold() in map(str.casefold, triggers):
        yield Problem(
            f"dataset.preservation.class_word and dataset.trigger_word are both {word!r}",
            "a class word that is not what is learned",
            "Change dataset.trigger_word to a word that means nothing yet.",
        )
    dropped = max(each.caption_dropout for each in trained)
    if kept.holds("blank") and dropped:
        yield Problem(
            f"dataset.preservation.kind is blank and dataset.caption_dropout is {dropped:g}",
            "one of them: dropped captions teach the empty prompt what blank holds it back from",
            "Set dataset.caption_dropout to 0, or dataset.preservation.kind to trajectory.",
        )


_OF_A_SLIDER = frozenset({"slider", "resolution", "batch_size", "preservation"})
"""What of the dataset's section a slider has too."""

_NOT_OF_A_SLIDER = {
    "path": "a slider is trained without images",
    "folders": "a slider is trained without images",
    "regularization": "a slider is trained without images; dataset.preservation.prompts holds the "
    "base to other prompts",
    "validation": "nothing of a slider can be held out",
    "trigger_word": "a slider is called by its strength",
    "caption_dropout": "the neutral prompts are what a slider is trained on",
    "captions": "the prompts of a slider are taken as they are",
    "mask": "a slider is trained on whole images",
    "more_resolutions": "a slider is trained at one size",
    "more_shapes": "a slider is trained at one size",
    "num_repeats": "dataset.slider.images says how many images there are",
    "control_area": "a slider has no control images",
    "control_dropout": "a slider has no control images",
}
_NO_FOLDER = "it says how images of a folder are read, and a slider has none"


def _not_of_a_slider(dataset: DatasetSection) -> Iterator[Problem]:
    """Settings of a folder's images, which a slider has not."""
    for name in type(dataset).model_fields:
        if name in _OF_A_SLIDER:
            continue
        value, usual = getattr(dataset, name), dataset.usual(name)
        for path, shown in _differences(f"dataset.{name}", value, usual):
            yield Problem(
                f"{path} {shown} and dataset.slider.positive is set",
                f"no {path}: {_NOT_OF_A_SLIDER.get(name, _NO_FOLDER)}",
                f"Leave {path} or dataset.slider out.",
            )


def _differences(path: str, value: Any, usual: Any) -> Iterator[tuple[str, str]]:
    """Settings that are not as they usually are, and what they are, in words."""
    if value == usual:
        return
    if isinstance(value, Section):
        for name in type(value).model_fields:
            yield from _differences(f"{path}.{name}", getattr(value, name), getattr(usual, name))
    elif isinstance(value, list) and value and isinstance(value[0], Section):
        yield path, f"names {len(value)} folder(s)"
    else:
        yield path, f"is {value_in_words(value)}"
