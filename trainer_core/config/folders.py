"""Settings of a dataset's folders: captions, masks, and what a further folder has of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ..filesystem.file_names import FOREIGN_EXTENSIONS, IMAGE_EXTENSIONS
from .section import Other, Problem, Section, setting

MaskOrigin = Literal["auto", "files", "alpha", "none"]
Role = Literal["train", "regularization", "validation"]
MissingCaption = Literal["error", "skip", "empty", "filename"]
Layout = Literal["auto", "flat", "paired", "layered", "kohya", "metadata"]

_SHUFFLED = Other("shuffle", such_as=4)


class CaptionSection(Section):
    """Rules that turn what a caption file says into the texts that are trained."""

    prefix: str = setting(
        "",
        "Leave it empty unless every caption should begin with the same words. Put in front of "
        "each caption, behind the trigger word, as it stands: end it with a comma where you want "
        "one.",
        advanced=True,
    )
    suffix: str = setting(
        "",
        "Leave it empty unless every caption should end with the same words. Put behind each "
        "caption as it stands: begin it with a comma where you want one.",
        advanced=True,
    )
    read_files: bool = setting(
        True,
        "Leave it on; off trains each image with the default text, or with its name "
        "(dataset.missing_caption: filename), whatever caption files there are.",
        advanced=True,
    )
    add_trigger: bool = setting(
        True,
        "Leave it on; off puts the trigger word only where a caption has [trigger], and in front "
        "of none.",
        advanced=True,
    )
    escape_brackets: bool = setting(
        True,
        "Leave it on, so that brackets are trained as letters: 'miku (vocaloid)' as KSampler's "
        "prompt 'miku \\(vocaloid\\)'. Weights with a number, as in (red:1.2), stay weights. Off: "
        "every bracket weighs, as in a prompt. Only for a CLIP of the graph that knows weights.",
        advanced=True,
    )
    default: str = setting(
        "",
        "Leave it empty unless one text describes every image that has no caption of its own.",
        advanced=True,
    )
    variants: Literal["one", "lines"] = setting(
        "one",
        "Leave it on one unless your caption files hold several captions of one image. 'one': a "
        "file is one caption. 'lines': each line is a caption of its own; each epoch takes "
        "another. A list in a .json caption is taken so in any case.",
        advanced=True,
    )
    length: Literal["both", "long", "short"] = setting(
        "both",
        "Leave it on both; only .json captions with a short and a long text have a choice. "
        "'both': each epoch takes one of them.",
        advanced=True,
    )
    wildcards: bool = setting(
        False,
        "Leave it off unless your captions are written with choices, such as 'a {red|blue} car'. "
        "Each epoch takes one of them.",
        advanced=True,
    )
    shuffle: int = setting(
        0,
        "Leave it at 0 for sentences; take 4 to 8 for captions of tags. How many orders of a "
        "caption's tags are encoded; each epoch takes another. 0: tags stay in place.",
        advanced=True,
        ge=0,
        le=64,
    )
    keep: int = setting(
        0,
        "Leave it at 0, or count the tags that must stay in front, when tags are shuffled. The "
        "trigger word and the prefix stay in any case.",
        advanced=True,
        ge=0,
        le=100,
        only_with=_SHUFFLED,
    )
    drop: float = setting(
        0.0,
        "Leave it at 0; take 0.1 for captions of many tags, so that no tag has to be there. Share "
        "of the tags that are left out of each order but the written one; 'keep' holds here too.",
        advanced=True,
        ge=0.0,
        le=0.9,
        only_with=_SHUFFLED,
    )
    separator: str = setting(
        ",",
        "Leave it unless your tags are parted by something else. What stands between two tags.",
        advanced=True,
        min_length=1,
        max_length=8,
        only_with=_SHUFFLED,
    )
    most: int = setting(
        16,
        "Leave it; lower it when encoding takes too long, raise it for more variety. The most "
        "texts that are encoded of one image; of more than that, so many are chosen.",
        advanced=True,
        ge=1,
        le=256,
    )

    def problems(self, place: str) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields, at a YAML path."""
        if self.shuffle == 1:
            yield Problem(
                f"{place}.shuffle is 1, which is the order that is written",
                "0 for tags that stay in place, or the number of orders, at least 2",
                f"Set {place}.shuffle to 4 or so, or leave it out.",
            )
        if self.shuffle > self.most:
            yield Problem(
                f"{place}.shuffle is {self.shuffle} and {place}.most is {self.most}",
                "no more orders of a caption than texts of an image",
                f"Lower {place}.shuffle to {self.most}, or raise {place}.most.",
            )


def extension_problems(path: str, extension: str | None) -> Iterator[Problem]:
    """A ``caption_extension`` that images have."""
    if (extension or "").lower() in IMAGE_EXTENSIONS | FOREIGN_EXTENSIONS:
        yield Problem(
            f"{path} is {extension}, which images end in",
            "the extension of text files, such as .txt or .caption",
            f"Leave {path} out for .txt.",
        )


class MaskSection(Section):
    """Where masks come from, and what they weigh."""

    source: MaskOrigin = setting(
        "auto",
        "Leave it on auto. 'auto': mask files where there are some, as NAME_mask.png beside the "
        "image or in a folder 'masks'; white is trained. 'files': every image needs one. 'alpha': "
        "an image's own transparency is its mask. 'none': masks are left unread.",
        advanced=True,
    )
    invert: bool = setting(
        False,
        "Leave it off unless your masks are white where nothing should be learned.",
        advanced=True,
        not_with=Other("source", "none", such_as="auto"),
    )
    foreground: float = setting(
        1.0,
        "Leave it at 1. Weight of the loss where the mask is white.",
        advanced=True,
        ge=0.0,
        le=100.0,
    )
    background: float = setting(
        0.1,
        "Raise it towards 1 when what surrounds your subject falls apart; at 0 it is not trained "
        "at all. Weight of the loss where the mask is black.",
        advanced=True,
        ge=0.0,
        le=100.0,
    )
    normalize: bool = setting(
        True,
        "Leave it on: a small subject then counts as much as a large one. Divides the loss of an "
        "image by the mean weight of its mask.",
        advanced=True,
    )

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields."""
        if not (self.foreground or self.background):
            yield Problem(
                "dataset.mask.foreground and dataset.mask.background are 0",
                "at least one of them above 0",
                "Raise dataset.mask.foreground; nothing of an image with a mask is trained "
                "otherwise.",
            )


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

    path: str = setting(
        ...,
        "Name a folder with images and captions.",
        min_length=1,
        path="anchored",
    )
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
        None,
        "Leave it unset, or name the folders of this one's control images; [] for none.",
        path="anchored",
    )
    mask_folder: str | None = setting(
        None,
        "Leave it unset, or name the folder of this one's masks; '' for none.",
        path="anchored",
        no_paths=("",),
    )
    mask_source: MaskOrigin | None = setting(
        None, "Leave it unset, or say where this folder's masks come from; 'none' for no masks."
    )
    missing_caption: MissingCaption | None = setting(
        None, "Leave it unset, or say what becomes of an image without caption."
    )
    metadata: str | None = setting(
        None,
        "Leave it unset unless the folder's metadata file has an unusual name.",
        path="as written",
    )
    caption_extension: str | None = setting(
        None, "Leave it unset unless its captions end in something else."
    )


_PLACES = frozenset({"path", "metadata", "control_folders", "mask_folder", "subfolders"})


def folder_without_places(folder: Mapping[str, Any]) -> dict[str, Any]:
    """What one of ``dataset.folders`` says otherwise, but for where it is.

    Its images are compared by content. What it leaves unset is left out, so that a setting which
    an older version did not have makes no difference.
    """
    stated = {name: value for name, value in folder.items() if value is not None}
    return {name: value for name, value in stated.items() if name not in _PLACES}
