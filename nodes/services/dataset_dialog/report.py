"""The images of a dataset folder one by one, as the strip and the dialog at a node list them.

It is read with the trainer's own scanner, headers and captions only, and cut into pages for the
browser. What is wrong is said so that a person can do something about it.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import DatasetError, InputError
from ...host.folders import folder_stamp, headers

if TYPE_CHECKING:
    from PIL.Image import Image

    from ....trainer_core.config import DatasetSection
    from ....trainer_core.data.sources.folder_problems import Fault, Scan
    from ....trainer_core.filesystem.allowed_folders import AllowedFolders
    from ....trainer_core.types import Bucket, Sample

SETTINGS = (
    *("layout", "caption_extension", "resolution", "max_aspect_ratio", "upscale", "crop"),
    *("metadata", "trigger_word", "frames", "fps", "max_clips"),
    *("missing_caption", "missing_image", "missing_control", "unreadable", "animated"),
)
"""The settings of a node that a report depends on."""

PAGE = 60
_KEPT_REPORTS = 8
_MOST_OTHERS = 20
_SMALL = 256
_SIZES = (_SMALL, 1536)
_MOVING_SIDE, _MOVING_RATE, _MOVING_FRAMES = 480, 8.0, 40
"""Of a clip that is shown large: five seconds, which are decoded and written in about one."""

_THUMBNAIL_BYTES = 32 * 2**20

_KINDS = {
    "unreadable": "cannot be read",
    "unreadable_caption": "caption cannot be read",
    "animated": "several frames",
    "clip": "clips with a mask, layers or a control image",
    "layers": "layers that do not fit",
    "missing_control": "no control image",
    "missing_caption": "no caption",
    "missing_image": "no image of that name",
    "tiny": "too small",
    "small": "smaller than the training size",
    "cropped": "much cut off",
    "transparent": "with an alpha channel",
}
"""Kinds of what is wrong, the gravest first, in words for a count."""

_WORDS = {
    "unreadable": "This file cannot be read, or is of a type that is not read. Save an image as "
    "PNG or JPEG, export a clip as MP4 (H.264) and of at least a second, or remove it.",
    "unreadable_caption": "Its caption file is not text in UTF-8, or cannot be opened. Save it as "
    "UTF-8 in a text editor, or remove it.",
    "animated": "This image has several frames. Save the frame you want as PNG, or set "
    "dataset.animated to first_frame or skip.",
    "missing_caption": "There is no caption. Write what is to be seen here.",
}
_LEFT_OUT = " It is left out."
_TRANSPARENT = "What is transparent of it is trained as white. Lay it on a background of your own."


class Report:
    """Everything about one folder, as JSON values.

    Attributes:
        items: One mapping for each training image, in the order of names.
        others: What is wrong with files that are not training images, in words.
        listed: Whether a metadata file has the captions.
    """

    def __init__(self, settings: DatasetSection, within: AllowedFolders) -> None:
        from ....trainer_core.data.buckets import standard_buckets
        from ....trainer_core.data.captions.notes import second_word
        from ....trainer_core.data.report.caption_findings import bracket_findings
        from ....trainer_core.data.report.report_text import finding_line
        from ....trainer_core.data.sources.recognize_layout import metadata_parts
        from ....trainer_core.data.sources.scan_folder import survey
        from ....trainer_core.types import ANY_CLIPS

        self._settings = settings
        self._root = Path(settings.path)
        # Here each file is looked at, whatever the node's policies would do about it.
        animated = "skip" if settings.animated == "error" else settings.animated
        relaxed = {"animated": animated, "trigger_word": ""}
        if settings.missing_caption != "filename":
            relaxed["missing_caption"] = "empty"
        settings_read = settings.model_copy(update=relaxed)
        found = survey(settings_read, within, remembered=headers(), grid=ANY_CLIPS)
        size = settings.resolution, settings.max_aspect_ratio, _size_multiple()
        self._buckets = standard_buckets(*size)
        self.listed = any(each.metadata for each in metadata_parts(self._root, settings))
        self.items = self._items(found)
        cures = dict.fromkeys(fault.cure for fault in found.faults if fault.cure)
        texts = [each.caption for each in found.samples]
        second = filter(None, [second_word(texts, settings.trigger_word)])
        self.others = [
            *cures,
            *second,
            *map(finding_line, bracket_findings(found.samples, self._settings)),
            *(fault.text for fault in found.faults if fault.image is None),
            *_unread(found),
        ]
        if not self.items:
            self.others.append("There are no images here yet. Drop some on this node.")
        elif len(self.items) - self.left_out == 1:
            self.others.append("One image is learned by heart. Add some more where you can.")

    @property
    def silent(self) -> bool:
        """Whether no image that can be read has a caption."""
        return not any(item["captioned"] for item in self.items if item["width"])

    @property
    def left_out(self) -> int:
        """How many of the items a person left out."""
        return sum(item["left_out"] for item in self.items)

    def page(self, first: int, count: int) -> dict[str, Any]:
        """The counts, and so many of the items from one on."""
        kinds = Counter(problem["kind"] for item in self.items for problem in item["problems"])
        places = {
            kind: next(
                number
                for number, item in enumerate(self.items)
                if kind in {problem["kind"] for problem in item["problems"]}
            )
            for kind in kinds
        }
        return {
            "total": len(self.items),
            "clips": sum(bool(item.get("parts")) for item in self.items),
            "left_out": self.left_out,
            "listed": self.listed,
            "uncaptioned": sum(not item["captioned"] for item in self.items),
            "paired": any(item["controls"] for item in self.items),
            "problems": [
                {"kind": kind, "count": kinds[kind], "words": words, "first": places[kind]}
                for kind, words in _KINDS.items()
                if kind in kinds
            ],
            "others": self.others[:_MOST_OTHERS],
            "first": first,
            "items": self.items[first : first + count],
        }

    def _items(self, found: Scan) -> list[dict[str, Any]]:
        items = {sample.image: self._item(sample) for sample in found.samples}
        for sample in found.samples:
            if sample.clip is not None:
                item = items[sample.image]
                item["parts"] = [*item.get("parts", []), sample.clip.frames]
        for fault in found.faults:
            if fault.image is not None:
                item = items.setdefault(fault.image, self._without_facts(fault.image))
                item["problems"].append(self._problem(fault.policy, _words(fault)))
        for image in found.left_out:
            items[image] = self._without_facts(image) | {"left_out": True}
        return sorted(items.values(), key=lambda item: item["name"])

    def _item(self, sample: Sample) -> dict[str, Any]:
        item: dict[str, Any] = self._named(sample.image)
        item |= {"width": sample.width, "height": sample.height}
        item |= {"captioned": bool(sample.caption)}
        # An image with layers is its own control image, which is to be seen already.
        item["controls"] = [self._named(path) for path in sample.layers or sample.controls]
        if sample.mask is not None and sample.mask != sample.image:
            item["mask"] = self._named(sample.mask)
        if not sample.caption and self._settings.missing_caption != "empty":
            item["problems"].append(self._problem("missing_caption", _WORDS["missing_caption"]))
        if sample.alpha:
            item["problems"].append({"kind": "transparent", "grave": False, "text": _TRANSPARENT})
        self._place(sample, item)
        return item

    def _without_facts(self, image: Path) -> dict[str, Any]:
        return self._named(image) | {"width": 0, "height": 0, "captioned": True, "controls": []}

    def _named(self, path: Path) -> dict[str, Any]:
        from ....trainer_core.data.sources.list_files import shown_name

        try:
            changed = _version(path)
        except OSError:
            changed = "0"
        named = {"name": shown_name(path, self._root), "version": changed, "problems": []}
        return named | {"left_out": False}

    def _problem(self, policy: str, text: str) -> dict[str, Any]:
        skips = getattr(self._settings, policy, "error") == "skip"
        return {"kind": policy, "grave": not skips, "text": text + _LEFT_OUT * skips}

    def _place(self, sample: Sample, item: dict[str, Any]) -> None:
        """Say at which size it is trained, and what of it."""
        from ....trainer_core.data.buckets import MUCH_CROPPED, choose_bucket
        from ....trainer_core.data.crop import cut_share, kept_box
        from ....trainer_core.data.framing import crop_of
        from ....trainer_core.data.report.finding_kinds import SMALL_SHARE

        settings, problems = self._settings, item["problems"]
        size = sample.width, sample.height
        try:
            bucket = choose_bucket(sample, self._buckets, settings, _size_multiple())
        except DatasetError as error:
            line = f"{error.found.removeprefix(sample.name)[1:]}: {error.expected}. {error.remedy}"
            problems.append({"kind": "tiny", "grave": True, "text": f"It {line}"})
            return
        left, top, right, bottom = kept_box(size, bucket, *crop_of(sample, settings))
        item["bucket"] = [bucket.width, bucket.height]
        across, down = size
        item["crop"] = [left / across, top / down, right / across, bottom / down]
        cut = cut_share(size, bucket, settings.crop)
        if cut > MUCH_CROPPED:
            text = f"{cut:.0%} of its area is cut off at the training size."
            problems.append({"kind": "cropped", "grave": False, "text": text})
        if across * down < SMALL_SHARE * settings.resolution**2:
            problems.append({"kind": "small", "grave": False, "text": _told_small(bucket, size)})


def _unread(found: Scan) -> Sequence[str]:
    """What is said of files that are no images, beside what the images say themselves."""
    known = {f"left out: {fault.text}" for fault in found.faults}
    counted = ("left out by hand", "which bases of videos train", ", because of its ")
    others = [each for each in found.problems if each not in known]
    return [each for each in others if not any(words in each for words in counted)]


def _words(fault: Fault) -> str:
    if fault.policy == "layers":
        return f"{fault.text}. Export its layers again: PNG with transparency, of the image's size."
    cure = fault.cure or _WORDS.get(fault.policy)
    return cure or f"{fault.text}. Add or rename it; names have to be the same."


def _told_small(bucket: Bucket, size: tuple[int, int]) -> str:
    how = "enlarged to" if bucket.width * bucket.height > size[0] * size[1] else "trained at"
    return (
        f"It has {size[0]} x {size[1]} pixels and is {how} {bucket.width} x {bucket.height}. "
        "A larger one has more detail to learn from."
    )


def _size_multiple() -> int:
    from ....trainer_core.families.registry import FAMILIES

    # A dataset does not know yet which family reads it.
    return max(family.latents.size_multiple for family in FAMILIES.values())


def read_settings(folder: Path, answers: object) -> DatasetSection:
    """The settings of a node, for its folder; what it does not say has the trainer's default.

    Raises:
        InputError: When one is out of its bounds.
    """
    from pydantic import ValidationError

    from ....trainer_core.config import DatasetSection

    known = answers if isinstance(answers, Mapping) else {}
    values = {name: known[name] for name in SETTINGS if name in known}
    for name in ("metadata", "fps"):
        if name in values and not values[name]:
            del values[name]  # unset, as an empty text and 0 of every setting that may be
    try:
        return DatasetSection(path=str(folder), **values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{name}: {first['msg']}", "a value within its bounds", "Change it."
        ) from (error)


class Reports:
    """The last reports; one is made again when a file of its folder changes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: OrderedDict[tuple[str, str], Report] = OrderedDict()

    def get(self, settings: DatasetSection, within: AllowedFolders) -> Report:
        """The report of a folder; errors as of `survey`."""
        key = settings.model_dump_json(), folder_stamp(Path(settings.path))
        with self._lock:
            found = self._made.get(key)
        found = found or Report(settings, within)
        with self._lock:
            self._made[key] = found
            self._made.move_to_end(key)
            while len(self._made) > _KEPT_REPORTS:
                self._made.popitem(last=False)
        return found


REPORTS = Reports()


class Thumbnails:
    """Small images that were made, up to so many bytes; large ones are made each time."""

    def __init__(self, largest: int = _THUMBNAIL_BYTES) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._size, self._largest = 0, largest

    def get(self, path: Path, *, large: bool) -> bytes:
        """An image as the trainer sees it, upright, in sRGB, as WebP; or `DatasetError`."""
        if large:
            return _encoded(path, _SIZES[1])
        key = str(path), _version(path)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = _encoded(path, _SIZES[0])
        with self._lock:
            self._size += len(made) - len(self._kept.get(key, b""))
            self._kept[key] = made
            while self._size > self._largest:
                self._size -= len(self._kept.popitem(last=False)[1])
        return made


THUMBNAILS = Thumbnails()


def _version(path: Path) -> str:
    """Changes with a file, or with the frames of a clip that is a folder."""
    return folder_stamp(path) if path.is_dir() else str(path.stat().st_mtime_ns)


def _encoded(path: Path, side: int) -> bytes:
    """A clip small is its middle frame, large it moves."""
    from ....trainer_core.data.clips import is_clip
    from ....trainer_core.data.image import open_image

    if is_clip(path):
        images = _frames(path, side)
    else:
        images = [open_image(path, "first_frame")]
        images[0].thumbnail((side, side))
    first, *others = images
    written, options = io.BytesIO(), {"format": "WEBP", "quality": 85, "method": 1}
    if others:
        options |= {"save_all": True, "append_images": others, "loop": 0, "method": 0}
        options["duration"] = round(1000 / _MOVING_RATE)
    first.save(written, **options)
    return written.getvalue()


def _frames(path: Path, side: int) -> list[Image]:
    """Frames of a clip: its middle one, or large so many a second of its beginning."""
    from ....trainer_core.data.clips import clip_facts, read_frames
    from ....trainer_core.types import ClipPart

    facts = clip_facts(path, _MOVING_RATE)
    part = ClipPart(facts.duration / 2, 1, _MOVING_RATE)
    if side != _SMALL:
        most = min(_MOVING_FRAMES, facts.frames(_MOVING_RATE))
        part = ClipPart(0.0, max(1, most), _MOVING_RATE)
        side = side if part.frames == 1 else _MOVING_SIDE
    images: list[Image] = []
    for image in read_frames(path, part):
        image.thumbnail((side, side))  # before the next: all of a clip in full fill the memory
        images.append(image)
    return images


def image_below(folder: Path, name: str, within: AllowedFolders) -> Path:
    """The image or clip that a browser names by its path below a dataset, with forward slashes.

    It really has to lie in `within`.

    Raises:
        InputError: When there is no such image, or it lies elsewhere.
    """
    from ....trainer_core.data.frame_folders import frame_files, is_frame_folder
    from ....trainer_core.filesystem.file_names import IMAGE_EXTENSIONS, ONLY_CLIPS

    known = IMAGE_EXTENSIONS | ONLY_CLIPS
    parts: Sequence[str] = name.split("/")
    plain = all(part and part[0] != "." and not set(part) & {"\\", "\0"} for part in parts)
    path = folder.joinpath(*parts) if plain and ":" not in parts[0][:2] else folder
    if path.suffix.lower() not in known or not _is_there(path):
        raise InputError(f"there is no image {name[:200]}", "an image of the dataset", "Reload.")
    for each in (path, *(frame_files(path) if is_frame_folder(path) else ())):
        within.require(each, "image")
    return path


def _is_there(path: Path) -> bool:
    from ....trainer_core.data.frame_folders import is_frame_folder

    try:
        return path.is_file() or (is_frame_folder(path) and path.is_dir())
    except (OSError, ValueError):
        return False
