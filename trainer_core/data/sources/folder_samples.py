"""The sample of one image of a folder: with its caption, mask, control images and layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...config import DatasetSection
from ...types import Sample
from ..captions.rules import caption_texts
from ..image import ImageInfo
from .caption_files import stated_caption, texts_beside
from .clip_files import ClipFiles
from .control_files import Controls, ordered
from .folder_problems import NO_MASK, Problems
from .image_choices import ImageChoices
from .kohya_folders import RepeatedFolder
from .layer_files import BAD_LAYERS, ImageLayer, layer_problem, layers_problem
from .list_files import ListedFile, Listing
from .mask_files import Masks, of_its_shape


@dataclass(slots=True)
class Reader:
    """Reads the samples of one folder.

    Attributes:
        prefix: What stands in front of a listed name in the sample's, such as
            ``training_images/``.
        expects_controls: Whether an image without one is a mistake.
        repeats: Of folders that are named as kohya's; None in other layouts.
        layers: Layers by image; None in other layouts.
        choices: What a person chose for single images.
        without_mask: Names of the samples that have none.
        pairs: Folders of what may be control images, to what to do about them.
    """

    listing: Listing
    prefix: str
    settings: DatasetSection
    problems: Problems
    clips: ClipFiles
    controls: Controls = field(default_factory=dict)
    expects_controls: bool = False
    masks: Masks = field(default_factory=dict)
    repeats: Mapping[str, RepeatedFolder] | None = None
    layers: Mapping[str, list[ImageLayer]] | None = None
    choices: ImageChoices = field(default_factory=ImageChoices)
    without_mask: list[str] = field(default_factory=list)
    pairs: Mapping[str, str] = field(default_factory=dict)
    _lower: dict[str, str] | None = None

    def samples(self, file: ListedFile) -> Iterator[Sample]:
        """Read one training image, or the parts of a clip, and what belongs to it."""
        return self.clips.samples(self.sample(file))

    def sample(self, file: ListedFile) -> Sample | None:
        """Read one training image and what belongs to it; None when it is left out."""
        path, name = self.listing.path(file), self.prefix + file.shown
        tell_name(file, name, self.problems)
        if self.choices.leaves_out(name):
            self.problems.leave_out(name, path)
            return None
        layers = self.layers
        controls = () if layers is not None else self._controls_of(file, path, name)
        facts = self.clips.info(path, path, name)
        found = self.controls.get(file.key, ()) if self.controls else ()
        readable = [self.clips.info(each.path, path, each.shown) is not None for each in found]
        captions = self._captions(file, path, name)
        if facts is None or controls is None or captions is None:
            return None
        if not all(readable):
            self.problems.tell(f"left out: {name}, because of its control image")
            return None
        layered: tuple[Path, ...] | None = ()
        if layers is not None:
            layered, controls = self._layers_of(file, path, name, facts), (path,)
        usable, mask = self._mask_of(file, path, name, facts)
        if layered is None or not usable:
            return None
        return Sample(
            name,
            path,
            captions[0],
            width=facts.width,
            height=facts.height,
            controls=controls,
            layers=layered,
            more_captions=captions[1:],
            mask=mask,
            repeats=self._repeats_of(file),
            focus=self.choices.focus_of(name),
            alpha=facts.alpha and layers is None and self.settings.mask.source != "alpha",
        )

    def _repeats_of(self, file: ListedFile) -> int:
        return 1 if self.repeats is None else self.repeats[file.name.partition("/")[0]].repeats

    def _controls_of(self, file: ListedFile, path: Path, name: str) -> tuple[Path, ...] | None:
        found = self.controls.get(file.key) if self.controls else None
        if not found:
            text = f"{name} has no control image"
            lacks = self.expects_controls and self.problems.lacks_controls(name, text, path)
            return None if lacks else ()
        controls, problem = ordered(found)
        if problem is not None:
            files = ", ".join(control.shown for control in controls)
            self.problems.add("missing_control", f"{name}: {problem} ({files})", path)
            return None
        return tuple(control.path for control in controls)

    def _layers_of(
        self, file: ListedFile, path: Path, name: str, facts: ImageInfo
    ) -> tuple[Path, ...] | None:
        found = (self.layers or {}).get(file.key, [])
        problem = layers_problem(name, found)
        for place, layer in enumerate(found):
            read = self.clips.info(layer.path, path, layer.shown)
            if read is None:
                return None
            size = facts.width, facts.height
            problem = problem or layer_problem(layer.shown, size, read, lowest=place == 0)
        if problem is not None:
            self.problems.add(BAD_LAYERS, problem, path)
            return None
        return tuple(layer.path for layer in found)

    def _mask_of(
        self, file: ListedFile, path: Path, name: str, facts: ImageInfo
    ) -> tuple[bool, Path | None]:
        """Whether the sample can be trained, and the file of its mask, None where it has none."""
        source = self.settings.mask.source
        if source == "none":
            return True, None
        found = self.masks.get(file.key) if self.masks and source != "alpha" else None
        if found is None:
            if source == "alpha" and facts.alpha:
                return True, path
            if source == "files":
                self.problems.add(NO_MASK, f"{name} has no mask", path)
                return False, None
            self.without_mask.append(name)
            return True, None
        read = self.clips.info(found.path, path, found.shown)
        if read is None:
            self.problems.tell(f"left out: {name}, because of its mask")
            return False, None
        named = f"the mask {found.shown}"
        return of_its_shape(named, read, path, image=facts, problems=self.problems), found.path

    def _captions(self, file: ListedFile, path: Path, name: str) -> tuple[str, ...] | None:
        with self.problems.of_captions(path):
            own, raw = texts_beside(self.listing, file.key, self.problems)
            if own is None and self.repeats is not None:
                named = self.repeats[file.name.partition("/")[0]].caption
                raw = () if named is None or self.settings.missing_caption == "skip" else (named,)
            raw = raw or stated_caption(self.settings, file.key)
            if not raw and self.settings.missing_caption != "empty":
                cure = self.pairs.get(file.key.rpartition("/")[0], "")
                texts = self._no_caption(file, name, own)
                self.problems.add("missing_caption", texts, path, cure=cure)
                return None
            return caption_texts(raw, self.settings, name)
        return None

    def _no_caption(self, file: ListedFile, name: str, own: ListedFile | None) -> str:
        if own is not None and own.extension == ".json":
            place = f"{self.prefix}{own.shown}"
            return f"{name} has no caption: {place} has none called caption, text, short or long"
        if own is not None:
            return f"{name} has an empty caption file"
        if not self.settings.captions.read_files:
            return f"{name} has no caption, and dataset.captions.read_files is off"
        if self._lower is None:
            self._lower = {each.key.lower(): each.shown for each in self.listing.captions.values()}
        other = self._lower.get(file.key.lower())
        hint = f" ({self.prefix}{other} is written otherwise)" if other else ""
        return f"{name} has no caption file{hint}"


def tell_name(file: ListedFile, name: str, problems: Problems) -> None:
    """Tell of a name that other systems and programs have trouble with."""
    if file.name.isascii() and file.name.isprintable():
        return
    if file.shown != file.name:
        words = "{count} name(s) are not UTF-8, and bytes are shown as question marks: {names}"
        problems.count(words, name)
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in file.name):
        words = "{count} name(s) have line breaks or other control characters: {names}"
        problems.count(words, name)
