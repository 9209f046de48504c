"""Settings of a dataset folder beside the first: what it says otherwise."""

from __future__ import annotations

from typing import Literal

from .captions import CaptionSection
from .masks import MaskOrigin
from .section import Section, setting

Role = Literal["train", "regularization", "validation"]
MissingCaption = Literal["error", "skip", "empty", "filename"]
Layout = Literal["auto", "flat", "paired", "layered", "kohya", "metadata"]

OVERRIDES = (
    *("layout", "caption_extension", "trigger_word", "captions", "caption_dropout"),
    *("control_dropout", "resolution", "more_resolutions", "more_shapes"),
    *("batch_size", "num_repeats"),
    *("subfolders", "control_folders", "mask_folder", "mask.source", "missing_caption"),
)
"""Settings of a folder that are those of ``dataset`` where it says nothing; by `own_name`."""


def own_name(setting: str) -> str:
    """What `FolderSection` calls one of `OVERRIDES`."""
    return setting.replace(".", "_")


class FolderSection(Section):
    """One more folder beside ``dataset.path``."""

    path: str = setting(..., "Name a folder with images and captions.", min_length=1)
    role: Role = setting(
        "train",
        "Take train for more of your own images, regularization for ordinary ones that keep the "
        "base from forgetting, validation for images that are never trained on.",
    )
    weight: float = setting(
        1.0,
        "Leave it at 1; lower it to let this folder's images count less in the loss.",
        ge=0.0,
        le=10.0,
    )
    num_repeats: int | None = setting(
        None, "Leave it unset, or say how often each image appears in an epoch.", ge=1, le=10000
    )
    resolution: int | None = setting(
        None, "Leave it unset unless these images are of another size.", ge=32, le=4096
    )
    more_resolutions: list[int] | None = setting(
        None, "Leave it unset, or list further sizes for these images."
    )
    more_shapes: list[str] | None = setting(
        None, "Leave it unset, or list further shapes for these images."
    )
    batch_size: int | None = setting(
        None, "Leave it unset, or say how many of these images share a batch.", ge=1, le=1024
    )
    trigger_word: str | None = setting(
        None, "Leave it unset, or name the word for what this folder shows; '' for none."
    )
    captions: CaptionSection | None = setting(
        None, "Leave it unset, or give this folder caption rules of its own."
    )
    caption_dropout: float | None = setting(
        None, "Leave it unset, or give this folder a share of its own.", ge=0.0, le=1.0
    )
    control_dropout: float | None = setting(
        None, "Leave it unset, or give this folder a share of its own.", ge=0.0, le=1.0
    )
    layout: Layout | None = setting(None, "Leave it unset unless the folder is read wrongly.")
    subfolders: bool | None = setting(
        None, "Leave it unset, or say whether images in sub-folders are read."
    )
    control_folders: list[str] | None = setting(
        None, "Leave it unset, or name the folders of this one's control images; [] for none."
    )
    mask_folder: str | None = setting(
        None, "Leave it unset, or name the folder of this one's masks; '' for none."
    )
    mask_source: MaskOrigin | None = setting(
        None, "Leave it unset, or say where this folder's masks come from; 'none' for no masks."
    )
    missing_caption: MissingCaption | None = setting(
        None, "Leave it unset, or say what becomes of an image without caption."
    )
    metadata: str | None = setting(
        None, "Leave it unset unless the folder's metadata file has an unusual name."
    )
    caption_extension: str | None = setting(
        None, "Leave it unset unless its captions end in something else."
    )
