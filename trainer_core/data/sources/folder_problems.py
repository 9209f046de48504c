"""Collects what is wrong with a dataset folder, and applies its policies: stop, skip or note."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...config import DatasetSection
from ...errors import DatasetError
from ...printable import listed
from ...types import Sample
from ..captions.wildcards import EXPECTED_RULES, CaptionRuleError
from ..image_decoders import READABLE_IMAGES
from .layer_files import BAD_LAYERS, EXPECTED_LAYERS
from .list_files import Listing
from .metadata_file import BAD_METADATA, EXPECTED_TABLE

BAD_CLIP = "clip"
"""A clip with something that images alone have, or in the place of that."""

BAD_CAPTION = "unreadable_caption"
"""A caption file that is not text; no setting lets a training leave it out."""

BAD_RULES = "caption_rules"
"""A caption to which ``dataset.captions`` cannot be applied, as to a choice without its end."""

NO_MASK = "missing_mask"
"""An image without a mask where each needs one; ``dataset.mask.source`` says whether it does."""

BAD_MASK = "mask_shape"
"""A mask of another shape than its image: nobody knows where it lies."""

ONLY_CLIPS = "only_clips"
"""A folder of clips, and none of images, for a base that trains images alone."""

EXPECTED_CAPTION = (
    "a readable text file in UTF-8, or in UTF-16 with its mark",
    "Save it as UTF-8 in a text editor, give read access to it, or remove it.",
)
"""What is expected of a caption that cannot be read, and what is to do."""

SHOWN = 5
"""Mistakes that a message names; the others are counted."""

_NO_SETTING = (
    *(BAD_CLIP, BAD_CAPTION, BAD_RULES, BAD_LAYERS),
    *(NO_MASK, BAD_MASK, BAD_METADATA, ONLY_CLIPS),
)

# In the order in which they are told: a broken image explains a caption without image.
_EXPECTED = {
    BAD_METADATA: EXPECTED_TABLE,
    ONLY_CLIPS: (
        "images, because this base is of images",
        "Choose a model of videos, such as Wan: in ComfyUI its MODEL trains clips, through Base "
        "From Model or the input model of Train LoRA (Quick). Or add images.",
    ),
    "unreadable": (
        f"whole images as {READABLE_IMAGES}",
        "Save the images again with an image editor, or set dataset.unreadable: skip.",
    ),
    BAD_CLIP: (
        "clips without layers, control clips beside clips, and still masks where dataset.crop is "
        "mask",
        "Remove those files, or put the clips into a folder of their own.",
    ),
    BAD_CAPTION: EXPECTED_CAPTION,
    BAD_RULES: EXPECTED_RULES,
    BAD_LAYERS: EXPECTED_LAYERS,
    "animated": (
        "images with one frame",
        "Save the frame you want as an image, or set dataset.animated: first_frame or skip.",
    ),
    "missing_control": (
        "a control image for every training image and the reverse, of the same name (or "
        "name_0, name_1, ... without gaps)",
        "Rename or add the files, or set dataset.missing_control: skip, or without to train "
        "images without control image as they are.",
    ),
    NO_MASK: (
        "a mask for every image, as NAME_mask.png beside it or masks/NAME.png",
        "Add the masks, or set dataset.mask.source: auto, with which an image without mask counts "
        "everywhere alike.",
    ),
    BAD_MASK: (
        "a mask of its image's size or shape",
        "Save the mask again in the image's size, or set dataset.mask.source: none.",
    ),
    "missing_caption": (
        "a caption file with text for every image",
        "Write the missing captions, or set dataset.missing_caption: empty (train without text) "
        "or skip.",
    ),
    "missing_image": (
        "an image for every caption file and for every mask",
        "Add the images or remove the captions and masks, or set dataset.missing_image: skip.",
    ),
}


_CLIPS = (
    f"whole images as {READABLE_IMAGES}, and whole clips that are long enough",
    "Save the images or export the clips again, or set dataset.unreadable: skip.",
)
"""The same where some of what cannot be read are clips."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that a policy decided about.

    Attributes:
        policy: Name of the setting under ``dataset``, or `BAD_CAPTION`, `BAD_LAYERS` and the like,
            for which there is none.
        image: The training image that it keeps out; None for a control image or a caption alone.
        cure: What cures it and all of its kind at once, such as a package to install; else empty.
    """

    policy: str
    text: str
    image: Path | None = None
    cure: str = ""


@dataclass(slots=True)
class Problems:
    """Collects what was found, so that one message can name it all.

    Attributes:
        problems: What was left out, and what may be a mistake, in words.
        faults: What policies decided about, with their images.
    """

    settings: DatasetSection
    problems: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)
    clips: set[Path] = field(default_factory=set)
    _errors: dict[str, list[str]] = field(default_factory=dict)
    _notes: dict[str, list[str]] = field(default_factory=dict)

    def add(self, policy: str, text: str, image: Path | None = None, *, cure: str = "") -> None:
        """Note something that a policy decides about.

        Args:
            policy: Name of the setting under ``dataset``, or one that has none (`Fault`).
            image: The training image that it keeps out.
        """
        self.faults.append(Fault(policy, text, image, cure))
        if policy in _NO_SETTING or getattr(self.settings, policy) == "error":
            self._errors.setdefault(policy, []).append(text)
        self.problems.append(f"left out: {text}")

    @contextmanager
    def of_captions(self, image: Path) -> Iterator[None]:
        """Note what is wrong with the captions of an image that a block reads."""
        try:
            yield
        except CaptionRuleError as error:
            self.add(BAD_RULES, error.found, image)
        except DatasetError as error:
            self.add(BAD_CAPTION, error.found, image)

    def lacks_controls(self, name: str, text: str, image: Path) -> bool:
        """Whether an image without control image is left out where others have one."""
        if self.settings.missing_control == "without":
            self.count("{count} image(s) are trained without control image: {names}", name)
            return False
        self.add("missing_control", text, image)
        return True

    def leave_out(self, name: str, image: Path) -> None:
        """Note an image that a person left out."""
        self.left_out.append(image)
        self.count("{count} image(s) are left out by hand: {names}", name)

    def tell(self, text: str) -> None:
        """Note something that may be a mistake, in words of its own."""
        self.problems.append(text)

    def count(self, words: str, name: str) -> None:
        """Note something that many files may have in common; it becomes one note.

        Args:
            words: What it is, with ``{names}`` where the files are named, and ``{count}``.
        """
        self._notes.setdefault(words, []).append(name)

    def tell_unread(self, listing: Listing, prefix: str = "", *, captions: bool = False) -> None:
        """Tell what of a folder is not read.

        Args:
            captions: Whether captions are not read either, as in a folder of control images.
        """
        for file in listing.foreign:
            image = None if captions else listing.path(file)
            self.add("unreadable", f"{prefix}{file.shown} is of a type that is not read", image)
        for file in listing.clips:
            words = "{count} clip(s), which bases of videos train and others leave out: {names}"
            self.count(words, prefix + file.shown)
        for name, reason in listing.passed_over.items():
            made = reason if reason.startswith("dataset.") else f"made by {reason}"
            self.count(f"{{count}} folder(s) are not read ({made}): {{names}}", f"{prefix}{name}")
        for name in listing.linked_twice:
            self.tell(f"left out: {prefix}{name} links to a folder that was read already")
        for name in listing.special:
            self.tell(f"left out: {prefix}{name} is not an ordinary file")
        unread = [*listing.unread]
        if captions:
            unread += [*listing.captions.values()]
            unread += [file for files in listing.other_captions.values() for file in files]
        for file in unread:
            self.count("{count} file(s) are not part of the dataset: {names}", prefix + file.shown)

    def told(self) -> tuple[str, ...]:
        """All of it, what many files have in common at the end."""
        notes = (
            words.format(count=len(names), names=listed(names, SHOWN))
            for words, names in self._notes.items()
        )
        return (*self.problems, *notes)

    def scan(self, samples: Sequence[Sample]) -> Scan:
        """What a folder holds, with all that was noted of it."""
        noted = tuple(self.faults), tuple(self.left_out)
        return Scan(tuple(samples), self.told(), self.refusal(), *noted)

    def refusal(self) -> DatasetError | None:
        """Why a policy says to stop; None when none does.

        Returns:
            An error that names the first files of the gravest kind and how many more there are.
        """
        for policy, (expected, remedy) in _EXPECTED.items():
            texts = self._errors.get(policy)
            if texts:
                faults = [each for each in self.faults if each.policy == policy]
                if policy == "unreadable" and any(each.image in self.clips for each in faults):
                    expected, remedy = _CLIPS
                cures = dict.fromkeys(each.cure for each in faults)
                remedy = " ".join(filter(None, (*cures, remedy)))
                return DatasetError(listed(texts, SHOWN, "; "), expected, remedy)
        return None


@dataclass(frozen=True, slots=True)
class Scan:
    """What a dataset folder holds.

    Attributes:
        samples: Sorted by name.
        problems: What the policies left out, and what may be a mistake, in words.
        refusal: Why a policy says to stop; None when none does.
        faults: Those of the problems that a policy decided about.
    """

    samples: tuple[Sample, ...]
    problems: tuple[str, ...]
    refusal: DatasetError | None = None
    faults: tuple[Fault, ...] = ()
    left_out: tuple[Path, ...] = ()
