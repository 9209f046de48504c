"""From a scan and a plan to the facts of a report; no image is opened."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config import DatasetSection, dataset_folders
from ...config.folders import Role
from ...errors import DatasetError
from ...types import Bucket, PlannedSample, Sample
from ..buckets import MUCH_CROPPED
from ..captions.length import TextLimit, caption_tokens
from ..crop import crop_and_focus
from ..describe_epoch import describe_plan, planned_batches
from ..sources.folder_problems import Fault, Scan
from .caption_findings import bracket_findings, caption_findings, caption_report, cut_captions
from .dataset_report import (
    BesideImage,
    DatasetReport,
    Finding,
    Placement,
    ReportedBucket,
    ReportedFolder,
    ReportedImage,
    Schedule,
)
from .finding_kinds import FEW, KINDS, SMALL_SHARE
from .report_text import finding_line

_ORDER = {name: number for number, name in enumerate(KINDS)}
_GRAVE = {"error": 0, "warning": 1, "note": 2}
_ENLARGED = 1.001
_STRETCHED = 1.1


@dataclass(frozen=True, slots=True)
class Batching:
    """What a run does with the samples.

    Attributes:
        batch_size: Samples of a micro-batch.
        micro_batches: Micro-batches of a step, of all processes.
    """

    batch_size: int = 1
    micro_batches: int = 1
    steps: int | None = None


def make_report(
    found: Scan,
    planned: Sequence[PlannedSample],
    dataset: DatasetSection,
    batching: Batching,
    limit: TextLimit | None = None,
    too_small: Sequence[Sample] = (),
) -> DatasetReport:
    """Put together what scan and plan know.

    Args:
        limit: Counts tokens, where the base is at hand.
        too_small: Samples that have no size; they are not in ``planned``.
    """
    tokens = None if limit is None else caption_tokens(found.samples, limit.count)
    images = reported_images(planned, dataset, tokens)
    buckets, schedule = _schedule(planned, dataset, batching)
    findings = [
        *scan_findings(found, dataset),
        *_small_findings(too_small),
        *plan_findings(images, dataset),
        *_batch_findings(images, buckets, dataset, batching),
        *quick_findings(found.samples, dataset),
        *(cut_captions(found.samples, tokens, limit) if limit and tokens else ()),
    ]
    return DatasetReport(
        title=Path(dataset.path).name or "dataset",
        findings=in_order(findings),
        images=images,
        buckets=buckets,
        folders=_folders(images, dataset),
        captions=caption_report(found.samples, tokens, limit),
        schedule=schedule,
        resolution=dataset.resolution,
        counts=_counts(found.samples),
    )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The gravest first, and those of a severity as the table lists them."""
    return tuple(sorted(findings, key=lambda each: (_GRAVE[each.severity], _ORDER[each.kind])))


def quick_findings(samples: Sequence[Sample], dataset: DatasetSection) -> list[Finding]:
    """Findings of the stage before a training that scan and plan do not tell; some milliseconds."""
    findings = [*_held_out_twice(samples), *caption_findings(samples, dataset)]
    own = [each for each in samples if not each.regularization and not each.validation]
    if 0 < len(own) < FEW:
        grave = "warning" if len(own) == 1 else "note"
        findings.append(Finding("few_images", grave, tuple(each.name for each in own)))
    if clear := tuple(each.name for each in samples if each.alpha):
        findings.append(Finding("transparent", KINDS["transparent"].severity, clear))
    return findings


def warnings_before(
    samples: Sequence[Sample], dataset: DatasetSection, *, weighs: bool = False
) -> tuple[str, ...]:
    """Warnings on what is about to be trained, beside those that scan and plan tell themselves.

    Args:
        weighs: Whether the tokenizer reads round brackets as weights.

    Raises:
        DatasetError: When something in it stops a training.
    """
    brackets = bracket_findings(samples, dataset) if weighs else ()
    findings = in_order((*quick_findings(samples, dataset), *brackets))
    for each in findings:
        if each.severity == "error":
            found = finding_line(each).removesuffix(f". {each.remedy}")
            raise DatasetError(f"dataset: {found}", "a dataset without that", each.remedy)
    return tuple(finding_line(each) for each in findings if each.severity == "warning")


def _held_out_twice(samples: Sequence[Sample]) -> Iterator[Finding]:
    """Images that are trained and held out: one file, whatever path leads to it."""
    held = [each for each in samples if each.validation]
    if not held:
        return
    trained = {_identity(each.image): each.name for each in samples if not each.validation}
    twice = [(each.name, trained.get(_identity(each.image))) for each in held]
    names = tuple(name for name, other in twice if other is not None)
    if names:
        details = tuple(f"trained as {other}" for _, other in twice if other is not None)
        yield Finding("held_out_trained", "error", names, details)


def _identity(path: Path) -> object:
    try:
        facts = path.stat()
    except OSError:
        return str(path)
    # Some file systems of Windows number no files.
    return (facts.st_dev, facts.st_ino) if facts.st_ino else os.path.realpath(path)


def scan_findings(found: Scan, dataset: DatasetSection) -> Iterator[Finding]:
    """What the scan tells, by the policy that decides about it."""
    groups: dict[str, list[Fault]] = {}
    for fault in found.faults:
        groups.setdefault(fault.policy if fault.policy in KINDS else "other", []).append(fault)
    for kind, faults in groups.items():
        policy = getattr(dataset, kind, "error")
        yield Finding(
            kind,
            "error" if policy == "error" else "warning",
            tuple(each.image.name if each.image else each.text for each in faults),
            tuple(each.text for each in faults),
            cure=" ".join(filter(None, dict.fromkeys(each.cure for each in faults))),
        )
    known = Counter(f"left out: {fault.text}" for fault in found.faults)
    others = []
    for problem in found.problems:
        # Those of further folders begin with the folder's name.
        start = problem.find("left out: ")
        plain = problem[start:] if start >= 0 else problem
        if known[plain] > 0:
            known[plain] -= 1
        else:
            others.append(problem)
    if others:
        yield Finding("left_out", "warning", details=tuple(others))
    if not found.samples:
        yield Finding("no_images", "error")


def _small_findings(samples: Sequence[Sample]) -> Iterator[Finding]:
    if samples:
        details = tuple(f"{each.width} x {each.height} pixels" for each in samples)
        yield Finding("too_small", "error", tuple(each.name for each in samples), details)


def plan_findings(images: Sequence[ReportedImage], dataset: DatasetSection) -> Iterator[Finding]:
    """What the sizes tell."""
    areas = [SMALL_SHARE * each.settings.resolution**2 for each in dataset_folders(dataset)]
    first = [(each, each.placements[0]) for each in images if each.placements]
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for image, earlier in first:
        if earlier.cut > MUCH_CROPPED:
            by_kind.setdefault("cropped", []).append((image.name, f"{earlier.cut:.0%} is cut off"))
        size = f"{image.width} x {image.height} pixels"
        if earlier.scale > _ENLARGED:
            change = f"{size}, enlarged {earlier.scale:.2f} times"
            by_kind.setdefault("upscaled", []).append((image.name, change))
        elif image.width * image.height < areas[image.folder]:
            by_kind.setdefault("small", []).append((image.name, size))
        if not 1 / _STRETCHED <= earlier.stretch <= _STRETCHED:
            change = f"{max(earlier.stretch, 1 / earlier.stretch):.2f} times wider or higher"
            by_kind.setdefault("stretched", []).append((image.name, change))
    for kind, pairs in by_kind.items():
        names, details = zip(*pairs, strict=True)
        yield Finding(kind, KINDS[kind].severity, names, details)
    numbers = {each.name: len(each.controls) for each in images}
    counts = Counter(numbers.values())
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        odd = tuple(name for name, number in numbers.items() if number != usual)
        details = tuple(f"{numbers[name]}, and most have {usual}" for name in odd)
        yield Finding("control_numbers", "warning", odd, details)


def _batch_findings(
    images: Sequence[ReportedImage],
    buckets: Sequence[ReportedBucket],
    dataset: DatasetSection,
    batching: Batching,
) -> Iterator[Finding]:
    size = dataset.batch_size or batching.batch_size
    short = {each.bucket for each in buckets if 0 < each.samples < size}
    names = tuple(
        each.name
        for each in images
        if each.role == "train" and any(at.bucket in short for at in each.placements)
    )
    if names:
        yield Finding("short_bucket", "note", names)


def reported_images(
    planned: Sequence[PlannedSample],
    dataset: DatasetSection,
    tokens: Mapping[str, int] | None = None,
) -> tuple[ReportedImage, ...]:
    """One entry for each sample; one that is trained at several sizes has them all.

    Args:
        tokens: Of each sample's longest text, by its name; None where they are not counted.
    """
    folders = dataset_folders(dataset)
    images: dict[tuple[int, str], ReportedImage] = {}
    for item in planned:
        sample = item.sample
        settings = folders[sample.folder].settings if sample.folder < len(folders) else dataset
        size = sample.width, sample.height
        at = Placement.of(size, item.bucket, *crop_and_focus(settings.crop, sample.focus))
        key = (sample.folder, sample.name)
        if known := images.get(key):
            images[key] = dataclasses.replace(known, placements=(*known.placements, at))
            continue
        images[key] = ReportedImage(
            name=sample.name,
            path=sample.image,
            role=role_of(sample),
            folder=sample.folder,
            width=sample.width,
            height=sample.height,
            placements=(at,),
            captions=sample.captions,
            tokens=None if tokens is None else tokens.get(sample.name),
            controls=tuple(BesideImage(path) for path in sample.controls if sample.clip is None),
            mask=None
            if sample.mask is None
            else BesideImage(sample.mask, inverted=settings.mask.invert),
            repeats=sample.repeats * settings.num_repeats,
            flipped=item.flipped,
            moved=sample.focus is not None,
            clip=sample.clip,
        )
    return tuple(images.values())


def role_of(sample: Sample) -> Role:
    """What a sample is for."""
    if sample.validation:
        return "validation"
    return "regularization" if sample.regularization else "train"


def _schedule(
    planned: Sequence[PlannedSample], dataset: DatasetSection, batching: Batching
) -> tuple[tuple[ReportedBucket, ...], Schedule]:
    """Batches by bucket, as a run will make them; held-out samples are in none."""
    size, micro = batching.batch_size, batching.micro_batches
    samples: Counter[Bucket] = Counter()
    batches: Counter[Bucket] = Counter()
    plan = planned_batches(
        planned, dataset, size, micro_batches=micro, preserved_share=dataset.preservation.share
    )
    for group in () if plan is None else plan.groups:
        samples[group.bucket] += len(group.indices)
        batches[group.bucket] += group.batches
    listed = tuple(
        ReportedBucket(
            *(bucket.width, bucket.height, samples[bucket], batches[bucket]), frames=bucket.frames
        )
        for bucket in sorted(samples)
    )
    steps = 0.0 if plan is None else float(plan.steps_per_epoch)
    lines = () if plan is None else tuple(describe_plan(plan))
    return listed, Schedule(size, micro, batching.steps, steps_per_epoch=steps, plan=lines)


def _folders(
    images: Sequence[ReportedImage], dataset: DatasetSection
) -> tuple[ReportedFolder, ...]:
    counts = Counter((image.folder, image.role == "regularization", image.role) for image in images)
    listed = []
    for number, folder in enumerate(dataset_folders(dataset)):
        own = sum(count for (at, _, _), count in counts.items() if at == number)
        settings = folder.settings
        listed.append(
            ReportedFolder(
                path=settings.path,
                role=folder.role,
                images=own,
                repeats=settings.num_repeats,
                weight=folder.weight,
                trigger_word=settings.trigger_word,
            )
        )
    return tuple(listed)


def _counts(samples: Sequence[Sample]) -> dict[str, int]:
    roles = Counter(role_of(sample) for sample in samples)
    return {
        "images": len(samples),
        "train": roles["train"],
        "regularization": roles["regularization"],
        "validation": roles["validation"],
        "captioned": sum(any(sample.captions) for sample in samples),
        "paired": sum(bool(sample.controls) for sample in samples),
        "masked": sum(sample.mask is not None for sample in samples),
        "layered": sum(bool(sample.layers) for sample in samples),
    }
