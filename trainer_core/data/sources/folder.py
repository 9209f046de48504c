"""From a dataset folder to samples, and what is wrong with it.

Three layouts. Flat: images, each beside a text file of the same name, in any sub-folder. Paired:
``training_images/`` as in the flat layout, and ``control_images/`` with images of the same names.
Layered: ``training_images/``, and ``layers/`` with the layers of each (`data.sources.layers`).
A second folder of ordinary images, for regularization, may stand beside the own one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...config import DatasetSection
from ...errors import DatasetError
from ...filesystem.allowed_folders import AllowedFolders
from ...printable import listed
from ...types import Sample
from ..captions import READABLE, read_caption, with_trigger
from ..image import ImageInfo, image_info
from .layers import (
    BAD_LAYERS,
    EXPECTED_LAYERS,
    Layer,
    layer_problem,
    layers_by_image,
    layers_problem,
)
from .layout import CONTROL_FOLDER, LAYERS_FOLDER, TRAINING_FOLDER, dataset_layout
from .listing import Listing, dataset_root, list_folder, shown_name

__all__ = ["CONTROL_FOLDER", "TRAINING_FOLDER"]

BAD_CAPTION = "unreadable_caption"
"""A caption file that is not text; no setting lets a training leave it out."""

_NO_SETTING = (BAD_CAPTION, BAD_LAYERS)

_SHOWN = 5  # mistakes that a message names; the others are counted
_MARKED = re.compile(r"^(?P<stem>.+)_control(?:_(?P<number>\d{1,2}))?$", re.DOTALL)
_NUMBERED = re.compile(r"^(?P<stem>.+)_(?P<number>\d{1,2})$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ControlName:
    """What the name of a control image says.

    Attributes:
        target: Stem of the training image, with its folder.
        number: Position among the target's controls as written; None where none is written.
    """

    target: str
    number: int | None


def control_in_folder(stem: str, targets: Collection[str]) -> ControlName | None:
    """Find the target of an image in the folder of controls.

    A target of exactly the same name wins over the numbered spellings, so that ``a_1.png`` is the
    control of a training image ``a_1``, and of ``a`` only where there is no ``a_1``.

    Args:
        stem: Path of the control within its folder, without extension.
        targets: The same of all training images.

    Returns:
        Target and position, or None when no training image fits.
    """
    if stem in targets:
        return ControlName(stem, None)
    for pattern in (_MARKED, _NUMBERED):
        name = _read(pattern, stem)
        if name is not None and name.target in targets:
            return name
    return None


def numbering_problem(numbers: Collection[int | None]) -> str | None:
    """Say what is wrong with the positions of one target's controls.

    Args:
        numbers: One per control; None counts as the place before the first number.

    Returns:
        Words for a message, or None when the positions are in order.
    """
    written = sorted(number for number in numbers if number is not None)
    if len(set(numbers)) < len(numbers):
        return "two control images claim the same place"
    if not written:
        return None
    if written[0] > 1:
        return f"control images begin at number {written[0]}"
    if written[-1] - written[0] + 1 != len(written):
        missing = sorted(set(range(written[0], written[-1])) - set(written))
        return f"control image number {missing[0]} is missing"
    return None


def _read(pattern: re.Pattern[str], stem: str) -> ControlName | None:
    match = pattern.match(stem)
    if match is None or match["stem"].endswith("/"):
        return None
    return ControlName(match["stem"], int(match["number"]) if match["number"] else None)


_Controls = dict[str, list[tuple[ControlName, Path]]]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that a policy decided about.

    Attributes:
        policy: Name of the setting under ``dataset``, or `BAD_CAPTION` or `BAD_LAYERS`, for which
            there is none.
        text: What was found, naming the file.
        image: The training image that it keeps out; None for a control image or a caption alone.
    """

    policy: str
    text: str
    image: Path | None = None


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


def scan(
    settings: DatasetSection, within: AllowedFolders | None = None, *, stop: bool = True
) -> Scan:
    """Read a dataset folder: names, headers and captions; no pixel is decoded.

    Args:
        settings: Where the folder is, its layout, and what to do about mistakes.
        within: What everything that is read really has to lie in; None follows every link. Where
            a graph may have named the folder, it has to be given.
        stop: Whether to stop where a policy says so; else what it is about is left out, and the
            result says that.

    Returns:
        The samples and what was left out.

    Raises:
        DatasetError: When the folder is missing or empty, a policy says to stop, or nothing is
            left to train.
    """
    found = survey(settings, within)
    if found.refusal is not None and (stop or not found.samples):
        raise found.refusal
    if not found.samples:
        raise _nothing_left(settings, found.problems)
    return found


def survey(settings: DatasetSection, within: AllowedFolders | None = None) -> Scan:
    """Read a dataset folder as `scan` does, and give also what that would refuse: no sample at all.

    Raises:
        DatasetError: When the folder is missing, or cannot be read.
    """
    root = dataset_root(settings.path)
    problems = Problems(settings)
    layout = dataset_layout(root, settings)
    images = root if layout == "flat" else root / TRAINING_FOLDER
    listing = list_folder(images, settings.caption_extension, within)
    targets, controls, layers = listing.images, {}, None
    if layout == "layered":
        layers = _layers_in_folder(root, listing, problems, within)
    elif layout == "paired":
        controls = _controls_in_folder(root, listing, problems, within)
    else:
        targets, controls = _controls_beside(listing, problems)
    _note_listing(listing, problems)
    expected = layout == "paired" or bool(controls)
    reader = _Reader(root, settings, problems, listing, controls, expected, layers)
    samples = [sample for path in targets if (sample := reader.sample(path)) is not None]
    _find_lonely_captions(listing, problems)
    told = tuple(problems.problems)
    return Scan(tuple(samples), told, problems.refusal(), tuple(problems.faults))


@dataclass(frozen=True, slots=True)
class _Reader:
    root: Path
    settings: DatasetSection
    problems: Problems
    listing: Listing
    controls: _Controls
    expects_controls: bool
    layers: dict[str, list[Layer]] | None = None

    def sample(self, path: Path) -> Sample | None:
        name = shown_name(path, self.root)
        controls = self._controls_of(path, name)
        facts = self._spec(path, path)
        usable = [self._spec(control, path) is not None for control in controls or ()]
        caption = self._caption(path, name)
        if self.layers is not None:
            layers = None if facts is None else self._layers_of(path, name, facts)
            if facts is None or caption is None or layers is None:
                return None
            return Sample(
                name, path, caption, facts.width, facts.height, controls=(path,), layers=layers
            )
        if facts is None or controls is None or caption is None:
            return None
        if not all(usable):
            self.problems.problems.append(f"left out: {name}, because of its control image")
            return None
        mask = path if facts.alpha and self.settings.mask.source == "alpha" else None
        return Sample(name, path, caption, facts.width, facts.height, controls, mask=mask)

    def _controls_of(self, path: Path, name: str) -> tuple[Path, ...] | None:
        found = self.controls.get(self.listing.key(path), [])
        if not found:
            if not self.expects_controls:
                return ()
            self.problems.add("missing_control", f"{name} has no control image", path)
            return None
        problem = numbering_problem([control.number for control, _ in found])
        if problem is not None:
            files = ", ".join(shown_name(control, self.root) for _, control in found)
            self.problems.add("missing_control", f"{name}: {problem} ({files})", path)
            return None
        order = sorted(found, key=lambda item: -1 if item[0].number is None else item[0].number)
        return tuple(control for _, control in order)

    def _layers_of(self, path: Path, name: str, facts: ImageInfo) -> tuple[Path, ...] | None:
        found = (self.layers or {}).get(self.listing.key(path), [])
        problem = layers_problem(name, found)
        for place, layer in enumerate(found):
            read = self._spec(layer.path, path)
            if read is None:
                return None
            size, shown = (facts.width, facts.height), shown_name(layer.path, self.root)
            problem = problem or layer_problem(shown, size, read, lowest=place == 0)
        if problem is not None:
            self.problems.add(BAD_LAYERS, problem, path)
            return None
        return tuple(layer.path for layer in found)

    def _spec(self, path: Path, image: Path) -> ImageInfo | None:
        try:
            facts = image_info(path)
        except DatasetError as error:
            self.problems.add("unreadable", error.found, image)
            return None
        if facts.animated and self.settings.animated != "first_frame":
            name = shown_name(path, self.root)
            self.problems.add("animated", f"{name} has several frames", image)
            return None
        return facts

    def _caption(self, path: Path, name: str) -> str | None:
        file = self.listing.captions.get(self.listing.key(path))
        try:
            text = read_caption(file) if file is not None else ""
        except DatasetError as error:
            self.problems.add(BAD_CAPTION, error.found, path)
            return None
        if not text and self.settings.missing_caption != "empty":
            what = "has no caption file" if file is None else "has an empty caption file"
            self.problems.add("missing_caption", f"{name} {what}", path)
            return None
        return with_trigger(self.settings.trigger_word, text)


def _layers_in_folder(
    root: Path, images: Listing, problems: Problems, within: AllowedFolders | None
) -> dict[str, list[Layer]]:
    listing = list_folder(root / LAYERS_FOLDER, problems.settings.caption_extension, within)
    for path in listing.foreign:
        problems.add("unreadable", f"{shown_name(path, root)} is of a type that is not read")
    stems = {images.key(path) for path in images.images}
    return layers_by_image(listing, stems, lambda text: problems.add(BAD_LAYERS, text))


def _controls_in_folder(
    root: Path, targets: Listing, problems: Problems, within: AllowedFolders | None
) -> _Controls:
    listing = list_folder(root / CONTROL_FOLDER, problems.settings.caption_extension, within)
    stems = {targets.key(path) for path in targets.images}
    known = stems | set(targets.captions) | {targets.key(path) for path in targets.foreign}
    controls: _Controls = {}
    for path in listing.images:
        control = control_in_folder(listing.key(path), stems)
        if control is not None:
            controls.setdefault(control.target, []).append((control, path))
        elif control_in_folder(listing.key(path), known) is None:
            name = shown_name(path, root)
            problems.add("missing_control", f"{name} has no training image")
    for path in listing.foreign:
        problems.add("unreadable", f"{shown_name(path, root)} is of a type that is not read")
    return controls


def _controls_beside(listing: Listing, problems: Problems) -> tuple[list[Path], _Controls]:
    """Part images from the control images that lie beside them.

    An image with a caption of its own is a training image, whatever its name.
    """
    marked = {
        path: control
        for path in listing.images
        if (key := listing.key(path)) not in listing.captions
        and (control := _read(_MARKED, key)) is not None
    }
    targets = [path for path in listing.images if path not in marked]
    stems = {listing.key(path) for path in targets}
    controls: _Controls = {}
    for path, control in marked.items():
        if control.target in stems:
            controls.setdefault(control.target, []).append((control, path))
        else:
            name = shown_name(path, listing.folder)
            problems.add("missing_control", f"{name} has no training image")
    return targets, controls


def _note_listing(listing: Listing, problems: Problems) -> None:
    for path in listing.foreign:
        name = shown_name(path, listing.folder)
        problems.add("unreadable", f"{name} is of a type that is not read", path)
    for path in listing.linked_twice:
        name = shown_name(path, listing.folder)
        problems.problems.append(f"left out: {name} links to a folder that was read already")
    stems: dict[str, Path] = {}
    for path in listing.images:
        first = stems.setdefault(listing.key(path), path)
        if first != path:
            names = [shown_name(item, listing.folder) for item in (first, path)]
            problems.problems.append(f"{names[0]} and {names[1]} share one caption")


def _find_lonely_captions(listing: Listing, problems: Problems) -> None:
    stems = {listing.key(path) for path in (*listing.images, *listing.foreign)}
    for key, path in sorted(listing.captions.items()):
        if key not in stems:
            name = shown_name(path, listing.folder)
            problems.add("missing_image", f"{name} has no image of the same name")


def _nothing_left(settings: DatasetSection, problems: Sequence[str]) -> DatasetError:
    folder = dataset_root(settings.path)
    folder = folder if dataset_layout(folder, settings) == "flat" else folder / TRAINING_FOLDER
    if problems:
        shown = listed(problems, _SHOWN, "; ")
        found = f"dataset.path: no sample is left in {folder} ({shown})"
        remedy = "Fix what was left out, or change the policies of the dataset section."
    else:
        found = f"dataset.path: there are no images in {folder}"
        remedy = "Put png, jpg, jpeg, webp or bmp files with captions there, or set dataset.path."
    return DatasetError(found, "at least one image with its caption", remedy)


# In the order in which they are told: a broken image explains a caption without image.
_EXPECTED = {
    "unreadable": (
        "whole images as PNG, JPEG, WebP or BMP",
        "Save the images again with an image editor, or set dataset.unreadable: skip.",
    ),
    BAD_CAPTION: READABLE,
    BAD_LAYERS: EXPECTED_LAYERS,
    "animated": (
        "images with one frame",
        "Save the frame you want as an image, or set dataset.animated: first_frame or skip.",
    ),
    "missing_control": (
        "a control image for every training image and the reverse, of the same name (or "
        "name_0, name_1, ... without gaps)",
        "Rename or add the files, or set dataset.missing_control: skip.",
    ),
    "missing_caption": (
        "a caption file with text for every image",
        "Write the missing captions, or set dataset.missing_caption: empty (train without text) "
        "or skip.",
    ),
    "missing_image": (
        "an image for every caption file",
        "Add the images or remove the captions, or set dataset.missing_image: skip.",
    ),
}


@dataclass(slots=True)
class Problems:
    """Collects what was found, so that one message can name it all.

    Attributes:
        settings: The policies.
        problems: What was left out, in words.
        faults: The same, with their policies and images.
    """

    settings: DatasetSection
    problems: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    _errors: dict[str, list[str]] = field(default_factory=dict)

    def add(self, policy: str, text: str, image: Path | None = None) -> None:
        """Note something that a policy decides about.

        Args:
            policy: Name of the setting under ``dataset``, or `BAD_CAPTION` or `BAD_LAYERS`.
            text: What was found, naming the file.
            image: The training image that it keeps out.
        """
        self.faults.append(Fault(policy, text, image))
        if policy in _NO_SETTING or getattr(self.settings, policy) == "error":
            self._errors.setdefault(policy, []).append(text)
        self.problems.append(f"left out: {text}")

    def refusal(self) -> DatasetError | None:
        """Why a policy says to stop; None when none does.

        Returns:
            An error that names the first files of the gravest kind and how many more there are.
        """
        for policy, (expected, remedy) in _EXPECTED.items():
            texts = self._errors.get(policy)
            if texts:
                return DatasetError(listed(texts, _SHOWN, "; "), expected, remedy)
        return None


REGULARIZATION = "regularization"
"""What the names of regularization images begin with."""


def scan_all(
    settings: DatasetSection, within: AllowedFolders | None = None, *, stop: bool = True
) -> Scan:
    """Read the dataset folder and, where one is named, the folder of regularization images.

    Args:
        settings: The folders, their layout, and what to do about mistakes.
        within: As for `scan`.
        stop: As `scan`.

    Returns:
        The samples of both, the own ones first.

    Raises:
        DatasetError: As `scan`; and when both are one folder, or one has control images and the
            other has none.
    """
    own = scan(settings, within, stop=stop)
    second = settings.regularization.path
    if not second:
        return own
    if Path(second).expanduser().resolve() == Path(settings.path).expanduser().resolve():
        raise DatasetError(
            f"dataset.regularization.path: {second} is dataset.path as well",
            "another folder, with ordinary images",
            "Name a folder of ordinary images, or leave dataset.regularization.path out.",
        )
    try:
        ordinary = settings.model_copy(update={"path": second, "trigger_word": ""})
        found = scan(ordinary, within, stop=stop)
    except DatasetError as error:
        message = error.found.replace("dataset.path", "dataset.regularization.path")
        raise DatasetError(message, error.expected, error.remedy) from error
    if any(s.controls for s in own.samples) != any(s.controls for s in found.samples):
        raise DatasetError(
            "one of dataset.path and dataset.regularization.path has control images, the other "
            "has none",
            "both with control images, or both without",
            "Add control images to the folder without, or name another folder.",
        )
    marked = tuple(
        dataclasses.replace(sample, name=f"{REGULARIZATION}/{sample.name}", regularization=True)
        for sample in found.samples
    )
    problems = tuple(f"{REGULARIZATION}: {problem}" for problem in found.problems)
    return Scan(own.samples + marked, own.problems + problems, own.refusal or found.refusal)
