"""What a base needs of a dataset or of a finished cache: control images, clips, frames, masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..config import DatasetSection
from ..config.dataset import dataset_folders
from ..config.folders import MaskSection
from ..errors import ConfigError, DatasetError
from ..tensors.safetensors_reader import open_tensors
from ..types import ENDS, START, Sample, StartFrames
from .cache.cache_file import read_entry
from .cache.cached_dataset import CachedDataset
from .cache.cached_item import CachedItem
from .masks import counts_nothing, may_count_nothing, nothing_counts_error

_GENERATE = "generate"


def require_control_images(
    samples: Iterable[Sample], settings: DatasetSection, variant: str, fixed: Sequence[str] = ()
) -> None:
    """Refuse samples without control images for a base that edits, unless they were asked for.

    Args:
        settings: Of the dataset; with ``missing_control: without`` an image may have none.
        fixed: As for `require_droppable`; these need one in any case.

    Raises:
        DatasetError: Naming the first such sample.
    """
    if variant == _GENERATE or (settings.missing_control == "without" and variant not in fixed):
        return
    bare = next((each for each in samples if not each.controls), None)
    if bare is not None:
        also = "" if variant in fixed else " or dataset.missing_control: without"
        raise DatasetError(
            f"{bare.name} has no control image, and the base's variant is {variant}",
            "a control image for each training image",
            f"Add control images, or set base.variant: generate{also}. With "
            "dataset.control_dropout they are left out now and then.",
        )


def require_droppable(settings: DatasetSection, variant: str, fixed: Sequence[str]) -> None:
    """Refuse to leave out control images that are not there, or that the base cannot do without.

    Args:
        fixed: Variants whose control image is a part of what is generated: the channels of an
            image that is filled, the image that is taken apart into layers.

    Raises:
        ConfigError: When a folder says otherwise.
    """
    for folder in dataset_folders(settings):
        share = folder.settings.control_dropout
        if not share or (variant != _GENERATE and variant not in fixed):
            continue
        name = "dataset.control_dropout"
        if share != settings.control_dropout:
            name = f"{folder.place.removesuffix('.path')}.control_dropout"
        why = (
            "which has no control images to leave out"
            if variant == _GENERATE
            else "which cannot do without its control image"
        )
        raise ConfigError(
            f"{name} is {share}, and the base's variant is {variant}, {why}",
            "control images that are left out only of a base that edits",
            f"Leave {name} out, or choose a base that edits.",
        )


def require_bare_texts(settings: DatasetSection, items: Iterable[CachedItem]) -> None:
    """Refuse a finished cache without the texts that control dropout would train.

    Args:
        items: What is cached for a base whose text encoder sees the control images.

    Raises:
        ConfigError: Naming the first sample that lacks them.
    """
    folders = [each.settings for each in dataset_folders(settings)] or [settings]
    if not any(folder.control_dropout for folder in folders):
        return
    for item in items:
        if item.validation:
            continue
        own = folders[item.folder] if item.folder < len(folders) else folders[0]
        if own.control_dropout and item.control_buckets and not item.bare_texts:
            raise ConfigError(
                f"dataset.control_dropout is {own.control_dropout}, and the finished cache has no "
                f"text of {item.name} without its control images",
                "a cache that was encoded with control dropout",
                "Encode again with this setting, or set dataset.control_dropout to 0.",
            )


def endpoint_kinds(settings: DatasetSection, starts: StartFrames | None) -> tuple[str, ...]:
    """Which frames of clips are encoded besides, for a base that is given them.

    Args:
        starts: What the base may be given; None where it takes no frame.

    Returns:
        `START`, and `ENDS` where some samples are given their last frame, too.

    Raises:
        ConfigError: When other frames are asked for than the base takes.
    """
    start, end = settings.start_frame, settings.end_frame
    always = starts is not None and starts.always
    if starts is None and (start or end):
        found, wanted = f"dataset.start_frame is {start or end:g}", "a base that takes no frame"
    elif end and not (starts and starts.end):
        found, wanted = f"dataset.end_frame is {end:g}", "a base that takes no last frame"
    elif always and start is not None and start < 1.0:
        found, wanted = f"dataset.start_frame is {start:g}", "a base that always begins with one"
    else:
        kinds = [START] if always or start or end else []
        return (*kinds, *([ENDS] if end else []))
    name = found.split(" ")[0]
    raise ConfigError(
        f"{found}, and {wanted}",
        "the share of samples that are given a frame which the base takes",
        f"Leave {name} out, or choose another base.",
    )


def require_clips(images: Iterable[str], starts: StartFrames | None) -> None:
    """Refuse single images for a base of videos that always begins with a frame.

    Of such an image nothing would be left to predict.

    Raises:
        DatasetError: Naming the first of them.
    """
    name = next(iter(images), None) if starts is not None and starts.always else None
    if name is not None:
        raise DatasetError(
            f"{name} is an image, and the base continues the first frame of a clip",
            "clips alone",
            "Take the images out, or train them on the text-to-video model of the same release: "
            "its adapters also work on the image-to-video model.",
        )


def require_steering(samples: Iterable[Sample], *, steered: bool) -> None:
    """Refuse clips without a control clip where one steers the base, and the other way round.

    Several control clips of one are refused, too.

    Raises:
        DatasetError: Naming the first such sample.
    """
    for each in samples:
        has_one = each.clip is not None and bool(each.controls)
        if steered and not has_one:
            what = "is an image" if each.clip is None else "has no control clip"
            raise DatasetError(
                f"{each.name} {what}, and the base is steered by control clips",
                "clips, and a control clip for each",
                "Put control clips of the same names into control_images, or a_control.mp4 beside "
                "a.mp4; or choose another model.",
            )
        if has_one and len(each.controls) > 1:
            raise DatasetError(
                f"{each.name} has {len(each.controls)} control clips",
                "one for each clip: no further one steers a base",
                "Remove the others.",
            )
        if has_one and not steered:
            raise DatasetError(
                f"{each.name} has a control clip, and no control clip steers the base",
                "a base that is steered by control clips, such as Wan VACE or Fun Control",
                "Remove the control clips, or choose such a model.",
            )


def require_endpoints(endpoints: Sequence[str], items: Iterable[CachedItem]) -> None:
    """Refuse a finished cache whose clips were encoded without the frames that are given.

    Args:
        items: What is cached; the header of one clip is read.

    Raises:
        ConfigError: When they are not there.
        StorageError: When the file is damaged or gone.
    """
    clip = next((each for each in items if each.bucket.frames > 1), None) if endpoints else None
    if clip is None:
        return
    with open_tensors(clip.latents.path) as file:
        known = {name.partition(".")[0] for name in file.tensors}
    if lacking := [kind for kind in endpoints if kind not in known]:
        name = "dataset.end_frame" if lacking[-1] == ENDS else "dataset.start_frame"
        raise ConfigError(
            f"{name} asks for frames that the finished cache lacks",
            "a cache that was encoded with this setting",
            f"Encode again with this setting, or leave {name} out.",
        )


def require_counting_masks(dataset: CachedDataset, settings: MaskSection) -> None:
    """Refuse weights under which nothing of some image counts.

    Masks are read where a weight is 0, and then all of them.

    Raises:
        DatasetError: Naming the first such image.
        StorageError: When a mask's file is damaged.
    """
    if not may_count_nothing(settings):
        return
    for item in dataset.items:
        if item.mask is not None and counts_nothing(read_entry(item.mask)["mask"], settings):
            raise nothing_counts_error(item.name)
