"""From a metadata file, or the parts of a Hugging Face image folder, to samples.

The file says which images are trained, and their control images, masks, repeats and weights. A
caption that it does not name is read from the caption file beside the image, as in other layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...config import DatasetSection
from ...errors import DatasetError
from ...filesystem.allowed_folders import AllowedFolders
from ...printable import listed
from ...types import FrameGrid, Sample
from ..captions.rules import caption_texts
from ..file_memory import FileMemory
from ..image import ImageInfo
from .caption_files import stated_caption, texts_beside
from .clip_files import ClipFiles
from .folder_problems import NO_MASK, Problems, Scan
from .image_choices import ImageChoices, read_choices
from .list_files import ListedFile, Listing, list_folder
from .mask_files import of_its_shape, tell_without_mask
from .metadata_columns import Columns, find_columns
from .metadata_file import (
    BAD_METADATA,
    Row,
    accepted_names,
    read_table,
    refuse_faulty,
    refuse_table,
)
from .metadata_rows import Entry, KnownFiles, read_entry
from .recognize_layout import PartFolder, metadata_parts


def survey_metadata(
    root: Path,
    settings: DatasetSection,
    within: AllowedFolders | None = None,
    remembered: FileMemory | None = None,
    grid: FrameGrid | None = None,
) -> Scan | None:
    """Read a dataset folder whose images a metadata file lists.

    Args:
        remembered: What is known of the images already.

    Returns:
        What was found, as by `scan_folder.survey`; None where the folder has no such file and need
        not have one.

    Raises:
        DatasetError: When the folder or its metadata file cannot be read, or the file is missing.
    """
    parts = metadata_parts(root, settings)
    if not parts:
        return None
    if within is not None:
        for part in parts:
            if part.metadata is not None:
                within.require(part.metadata, "dataset.metadata", DatasetError)
    listing = list_folder(root, settings.caption_extension, within, clips=grid is not None)
    choices, problems = read_choices(root, within), Problems(settings)
    clips = ClipFiles(problems, grid, remembered)
    survey = _Survey(root, settings, listing, problems=problems, clips=clips, choices=choices)
    for part in parts:
        survey.read(part)
    return survey.result(parts)


@dataclass(slots=True)
class _Survey:
    """One dataset folder that is being read.

    Attributes:
        used: Names of files that a row names.
        trained: Names of images that a row lists, to where it stands.
        without_mask: Where samples stand that have none.
        faults: Rows that cannot be used, in words.
        edits: Whether some image has control images, so that one without is a mistake.
    """

    root: Path
    settings: DatasetSection
    listing: Listing
    problems: Problems
    clips: ClipFiles
    choices: ImageChoices
    samples: list[Sample] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    trained: dict[str, str] = field(default_factory=dict)
    edits: bool = False
    without_mask: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _files: dict[str, ListedFile] = field(init=False)
    _foreign: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._files = {file.name: file for file in self.listing.images}
        self._foreign = {file.name for file in (*self.listing.foreign, *self.listing.clips)}

    def read(self, part: PartFolder) -> None:
        """Read the images of one part."""
        base = "" if part.folder == self.root else f"{part.folder.name}/"
        if part.part == "test":
            below = {name for name in self._files if name.startswith(base)}
            self.used |= below
            self.problems.tell(
                f"left out: the folder {part.folder.name} with {len(below)} image(s), because a "
                "test part is neither trained nor measured; name it validation to measure on it"
            )
            return
        if part.metadata is None:
            names = [name for name in self._files if name.startswith(base)]
            entries = [
                (name, Entry(name, None, (), mask=None, repeats=1, weight=1.0)) for name in names
            ]
            known = KnownFiles(self.root, self._files)
        else:
            entries = self._entries(part.metadata)
            known = KnownFiles(self.root, [*self._files, *self._foreign], base)
        entries = list(entries)
        self.edits = self.edits or any(entry.controls for _, entry in entries)
        for place, entry in entries:
            sample = self._sample(place, entry, known, held_out=part.part == "validation")
            self.samples += self.clips.samples(sample)

    def result(self, parts: Sequence[PartFolder]) -> Scan:
        """What was found, when all parts are read."""
        left = [file.shown for name, file in self._files.items() if name not in self.used]
        what = "no metadata file lists" if len(parts) > 1 else "the metadata file does not list"
        if left:
            self.problems.tell(f"left out: {len(left)} image(s) that {what}: {listed(left, 5)}")
        tables = {self._name(part.metadata) for part in parts if part.metadata is not None}
        self.listing.unread = [f for f in self.listing.unread if f.name not in tables]
        self.problems.tell_unread(self.listing)
        masked = any(sample.mask is not None for sample in self.samples)
        tell_without_mask(self.without_mask, self.problems, masked=masked)
        self.samples.sort(key=lambda sample: sample.name)
        return self.problems.scan(self.samples)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _entries(self, path: Path) -> Iterator[tuple[str, Entry]]:
        """The rows of a metadata file that say something sound, each with where it stands."""
        name, table = self._name(path), read_table(path)
        for fault in table.faults:
            self.problems.add(BAD_METADATA, f"{name} {fault}")
        if not table.rows and not table.faults:
            raise refuse_table(path, "it has no rows")
        columns = find_columns(table.names)
        self._tell_columns(name, columns)
        if table.rows and "image" not in columns.single:
            raise refuse_table(
                path,
                f"it has no column for the image, but {listed(table.names, 10) or 'none'}; the "
                f"column is called one of {accepted_names('image')}",
            )
        for row in table.rows:
            entry = self._entry(name, row, columns)
            if entry is not None:
                yield f"{name} {row.place}", entry

    def _entry(self, name: str, row: Row, columns: Columns) -> Entry | None:
        try:
            return read_entry(row.values, columns)
        except ValueError as error:
            self.problems.add(BAD_METADATA, f"{name} {row.place}: {error}")
            self.faults.append(f"{row.place}: {error}")
            refuse_faulty(self.root / name, self.faults)
            return None

    def _tell_columns(self, name: str, columns: Columns) -> None:
        if columns.unread:
            unread = listed([repr(each) for each in columns.unread], 10)
            self.problems.tell(f"{name}: column(s) that are not read: {unread}")
        for one, other in columns.doubled:
            self.problems.tell(f"{name}: column {one!r} is not read, because {other!r} is")

    def _sample(
        self, place: str, entry: Entry, known: KnownFiles, *, held_out: bool
    ) -> Sample | None:
        name = self._file(place, entry.image, known, "missing_image")
        if name is None:
            return None
        if name in self.trained:
            note = f"left out: {place}, because {name} stands in {self.trained[name]} already"
            self.problems.tell(note)
            return None
        self.trained[name] = place
        file = self._files[name]
        image = self.listing.path(file)
        if self.choices.leaves_out(file.shown):
            self.problems.leave_out(file.shown, image)
            return None
        facts = self._facts(file, image)
        controls = [self._control(place, text, known, image) for text in entry.controls]
        captions = self._captions(place, file, entry, image)
        masked, mask = self._mask(place, entry, known, image=image, facts=facts)
        whole = [each for each in controls if each is not None]
        text = f"{place}: {file.shown} has no control image"
        if not controls and self.edits and self.problems.lacks_controls(file.shown, text, image):
            return None
        if facts is None or captions is None or not masked or len(whole) < len(controls):
            return None
        return Sample(
            name=file.shown,
            image=image,
            caption=captions[0],
            width=facts.width,
            height=facts.height,
            controls=tuple(whole),
            more_captions=captions[1:],
            mask=mask,
            validation=held_out,
            repeats=entry.repeats,
            weight=entry.weight,
            focus=self.choices.focus_of(file.shown),
            alpha=facts.alpha and self.settings.mask.source != "alpha",
        )

    def _file(
        self, place: str, text: str, known: KnownFiles, policy: str, image: Path | None = None
    ) -> str | None:
        """The name of a file that a row names; None where it cannot be used, which is told."""
        name, reason = known.find(text)
        if reason:
            policy = BAD_METADATA if "leads out" in reason else policy
            self.problems.add(policy, f"{place}: {text[:200]} {reason}", image)
            return None
        if name in self._foreign:
            # It is told as a file of a type that is not read.
            return None
        self.used.add(name)
        return name

    def _facts(self, file: ListedFile, image: Path) -> ImageInfo | None:
        return self.clips.info(self.listing.path(file), image, file.shown)

    def _control(self, place: str, text: str, known: KnownFiles, image: Path) -> Path | None:
        name = self._file(place, text, known, policy="missing_control", image=image)
        if name is None or self._facts(self._files[name], image) is None:
            return None
        return self.listing.path(self._files[name])

    def _captions(
        self, place: str, file: ListedFile, entry: Entry, image: Path
    ) -> tuple[str, ...] | None:
        texts = entry.captions
        with self.problems.of_captions(image):
            if texts is None:
                _, texts = texts_beside(self.listing, file.key, self.problems)
            raw = [text for text in texts if text.strip()]
            raw = raw or stated_caption(self.settings, file.key)
            if not raw and self.settings.missing_caption != "empty":
                what = f"{place}: {file.shown} has no caption, and no caption file beside it"
                if entry.captions is not None:
                    what = f"{place}: the caption of {file.shown} is empty"
                self.problems.add("missing_caption", what, image)
                return None
            return caption_texts(raw, self.settings, place)
        return None

    def _mask(
        self, place: str, entry: Entry, known: KnownFiles, image: Path, facts: ImageInfo | None
    ) -> tuple[bool, Path | None]:
        """Whether the sample may be trained as far as its mask goes, and the mask."""
        source = self.settings.mask.source
        if entry.mask is not None and source in {"auto", "files"}:
            name = self._file(place, entry.mask, known, policy=NO_MASK, image=image)
            if name is None:
                return False, None
            file = self._files[name]
            found = self._facts(file, image)
            named = f"{place}: the mask {file.shown}"
            if found is None or facts is None:
                return found is not None, self.listing.path(file)
            fits = of_its_shape(named, found, image, image=facts, problems=self.problems)
            return fits, self.listing.path(file)
        if entry.mask is not None:
            words = f"{{count}} mask(s) of rows are not read (dataset.mask.source: {source}): "
            self.problems.count(words + "{names}", entry.mask)
        if source == "files":
            self.problems.add(NO_MASK, f"{place} names no mask", image)
            return False, None
        if source == "alpha" and facts is not None and facts.alpha:
            return True, image
        self.without_mask.append(place)
        return True, None
