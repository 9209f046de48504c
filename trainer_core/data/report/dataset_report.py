"""`DatasetReport`: a report's facts as plain values; words and pages are made from these alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ...config.folders import Role
from ...printable import grouped
from ...types import Bucket, ClipPart
from ..crop import CENTER, Crop, cut_share, kept_box
from .finding_kinds import KINDS, Severity

_NOUNS = {"cut": "clip", "still": "clip", "other": "file"} | dict.fromkeys(
    ("missing_image", "metadata", "left_out"), ""
)
"""What is counted where that is not an image, or where the words of the kind name it themselves."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person may want to do something about.

    Attributes:
        severity: Its own: a policy may make an error a warning.
        names: The images (or files) that it is about, in order.
        details: What was found of each, or of all, in words; may be empty.
        groups: Images that belong together, such as those that look alike; else empty.
        cure: What cures all of it at once, such as a package to install; else empty.
    """

    kind: str
    severity: Severity
    names: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    cure: str = ""

    @property
    def count(self) -> int:
        """How many images or files it is about."""
        return len(self.names) or len(self.details)

    @property
    def title(self) -> str:
        """Number and what is wrong, as ``3 images have no caption``."""
        problem = KINDS[self.kind].said_of(self.count)
        if self.kind == "no_images":
            return problem
        noun = _NOUNS.get(self.kind, "image")
        noun += "s" if noun and self.count != 1 else ""
        return " ".join(filter(None, (grouped(self.count), noun, problem)))

    @property
    def remedy(self) -> str:
        """What to do."""
        kind = KINDS[self.kind]
        skipped = kind.skipped if self.severity != kind.severity else ""
        return f"{self.cure} {skipped or kind.remedy}".strip()


@dataclass(frozen=True, slots=True)
class Placement:
    """One size at which an image is trained.

    Attributes:
        crop: What is kept: left, top, right, bottom as shares of the image, 0 to 1.
        cut: Share of the image's area that is cut off, 0 to 1.
        scale: Pixels of the bucket for one of the image, across; above 1 it is enlarged.
        stretch: How much wider than high it becomes, as a factor; 1 keeps the proportions.
    """

    width: int
    height: int
    crop: tuple[float, float, float, float]
    cut: float
    scale: float
    stretch: float = 1.0
    frames: int = 1

    @classmethod
    def of(
        cls,
        size: tuple[int, int],
        bucket: Bucket,
        crop: Crop = "center",
        focus: tuple[float, float] = CENTER,
    ) -> Placement:
        """What of an image is seen at a size.

        Args:
            size: Upright width and height in pixels.
            focus: Middle of its mask, where that decides; the image's until the mask is read.
        """
        width, height = size
        left, top, right, bottom = kept_box(size, bucket, crop, focus)
        across, down = bucket.width / (right - left), bucket.height / (bottom - top)
        return cls(
            width=bucket.width,
            height=bucket.height,
            crop=(left / width, top / height, right / width, bottom / height),
            cut=cut_share(size, bucket, crop),
            scale=max(across, down),
            stretch=across / down,
            frames=bucket.frames,
        )

    @property
    def bucket(self) -> Bucket:
        """The size alone."""
        return Bucket(self.width, self.height, self.frames)


@dataclass(frozen=True, slots=True)
class BesideImage:
    """A control image or a mask; sizes are 0 until it was looked at.

    Attributes:
        path: Its file; the image's own where its transparency is the mask.
        inverted: Whether black is what counts.
    """

    path: Path
    width: int = 0
    height: int = 0
    inverted: bool = False


@dataclass(frozen=True, slots=True)
class ReportedImage:
    """One training image.

    Attributes:
        folder: Which of the dataset's folders it lies in.
        tokens: Of its longest text; None where no tokenizer is at hand.
        repeats: How often it appears in an epoch, all factors in.
        flipped: Whether it is trained mirrored as well.
        moved: Whether a person has moved what is kept of it.
        clip: Which frames of the file, where that is a clip.
    """

    name: str
    path: Path
    role: Role
    folder: int
    width: int
    height: int
    placements: tuple[Placement, ...]
    captions: tuple[str, ...]
    tokens: int | None = None
    controls: tuple[BesideImage, ...] = ()
    mask: BesideImage | None = None
    repeats: int = 1
    flipped: bool = False
    moved: bool = False
    clip: ClipPart | None = None

    @property
    def bucket(self) -> Bucket:
        """The first size it is trained at; 0 by 0 where it has none."""
        return self.placements[0].bucket if self.placements else Bucket(0, 0)


@dataclass(frozen=True, slots=True)
class ReportedBucket:
    """One size, and what trains at it.

    Attributes:
        samples: How many are trained at it; held-out ones do not count.
        vram_bytes: What a step at it is expected to take; None where it is not known.
    """

    width: int
    height: int
    samples: int
    batches: int
    vram_bytes: int | None = None
    frames: int = 1

    @property
    def bucket(self) -> Bucket:
        """The size alone."""
        return Bucket(self.width, self.height, self.frames)


@dataclass(frozen=True, slots=True)
class ReportedFolder:
    """One folder of the dataset."""

    path: str
    role: Role
    images: int
    repeats: int
    weight: float
    trigger_word: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Shortest, median and longest of many."""

    shortest: int
    median: int
    longest: int


@dataclass(frozen=True, slots=True)
class ReportedCaptions:
    """What the texts are like.

    Attributes:
        words: Spread of words in a text; None without any text.
        tokens: Spread of tokens; None where no tokenizer is at hand.
        limit: The most tokens that are read; None as above.
        frequent: The most frequent words, with the number of images whose captions have them.
    """

    written: int
    texts: int
    different: int
    words: Spread | None = None
    tokens: Spread | None = None
    limit: int | None = None
    frequent: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long a training is.

    Attributes:
        batch_size: Samples of a micro-batch.
        micro_batches: Micro-batches of a step, of all processes.
        steps: Of the run; None where none is named.
        steps_per_epoch: Until each image was seen as often as its repeats say.
        plan: What an epoch is made of (`data.describe_epoch.describe_plan`), a line each.
    """

    batch_size: int
    micro_batches: int
    steps: int | None
    steps_per_epoch: float
    plan: tuple[str, ...] = ()

    @property
    def epochs(self) -> float:
        """How often the dataset is gone through."""
        return (self.steps or 0) / self.steps_per_epoch if self.steps_per_epoch else 0.0


@dataclass(frozen=True, slots=True)
class Looked:
    """What decoding the images took.

    Attributes:
        decoded: Of them, those that were not remembered.
    """

    images: int
    decoded: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """Everything about a dataset.

    Attributes:
        images: In the order of the scan.
        buckets: In order of size.
        looked: What decoding took; None where the images were not looked at.
        vram_total: Bytes of the device; None where it is not known.
    """

    title: str
    findings: tuple[Finding, ...]
    images: tuple[ReportedImage, ...]
    buckets: tuple[ReportedBucket, ...]
    folders: tuple[ReportedFolder, ...]
    captions: ReportedCaptions
    schedule: Schedule
    resolution: int
    looked: Looked | None = None
    vram_total: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def stops(self) -> bool:
        """Whether a training would refuse the dataset."""
        return any(finding.severity == "error" for finding in self.findings)

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of a severity."""
        return tuple(each for each in self.findings if each.severity == severity)


def motion_findings(notes: Sequence[tuple[str, str, str]]) -> Iterator[Finding]:
    """What clips showed while they were decoded, put together."""
    # A clip that is trained in several sizes was decoded for each.
    once = sorted(set(notes))
    for kind in dict.fromkeys(kind for kind, _, _ in once):
        names, details = zip(*((n, each) for k, n, each in once if k == kind), strict=True)
        yield Finding(kind, KINDS[kind].severity, names, details)


def as_json(value: Any) -> Any:
    """Turn facts into what JSON knows; what stands at its default of nothing stays in."""
    if isinstance(value, Finding):
        plain = {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
        return plain | {"count": value.count, "title": value.title, "remedy": value.remedy}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, Path):
        return str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, float):
        return round(value, 4)
    return value
