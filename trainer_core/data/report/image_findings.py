"""Findings that need decoded images: broken ones, duplicates, blank ones, empty masks, cuts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...config import DatasetSection
from ...errors import DatasetError
from ..clips import read_frames
from ..image import image_size, turned_note
from ..masks import center_of_mass, read_mask, same_shape
from ..motion import Motion
from .dataset_report import (
    BesideImage,
    DatasetReport,
    Finding,
    Looked,
    Placement,
    ReportedImage,
    motion_findings,
)
from .duplicates import is_flat, near_duplicates, of_same_bytes
from .finding_kinds import KINDS
from .image_fingerprints import ImageLooks, look_at_images
from .make_report import in_order

_BLACK, _WHITE = 8, 247
_THREADS = 8


def find_in_images(
    report: DatasetReport,
    dataset: DatasetSection,
    remembered: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DatasetReport:
    """Decode the images of a report and add what they tell.

    Args:
        remembered: Folder that keeps what was seen (`look_at_images`).
        progress: Told how many of how many images are done.

    Returns:
        The report with more findings, and with the sizes of control images and masks.
    """
    # The parts of a clip are one file, and Pillow decodes few.
    still = [each for each in report.images if each.clip is None]
    clips = [each for each in report.images if each.clip is not None]
    count = len(report.images)
    paths = [image.path for image in still]
    looks = look_at_images(paths, remembered, lambda done, _: progress(done, count))
    moving, took = _moving(clips, lambda done: progress(len(still) + done, count))
    took = Looked(count, looks.took.decoded + len(clips), looks.took.seconds + took)
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        measured = list(pool.map(_measured, report.images))
        masks = list(pool.map(lambda image: _mask_of(image, dataset), measured))
    images = tuple(_focused(*each, dataset) for each in zip(measured, masks, strict=True))
    broken = [(still[at].name, why) for at, why in sorted(looks.broken.items())]
    found = [
        *_broken(broken, skipped=dataset.unreadable == "skip"),
        *_same(still, looks),
        *_alike(still, looks),
        *_flat(still, looks),
        *moving,
        # With an area of its own a control image keeps its shape.
        *(() if dataset.control_area else _controls(images)),
        *_masks(images, masks),
    ]
    findings = in_order([*report.findings, *found])
    return dataclasses.replace(report, images=images, findings=findings, looked=took)


def _measured(image: ReportedImage) -> ReportedImage:
    controls = tuple(_sized(each) for each in image.controls)
    mask = None if image.mask is None else _sized(image.mask)
    return dataclasses.replace(image, controls=controls, mask=mask)


def _sized(file: BesideImage) -> BesideImage:
    try:
        width, height = image_size(file.path)
        return dataclasses.replace(file, width=width, height=height)
    except DatasetError:
        return file


def _finding(
    kind: str, pairs: Sequence[tuple[str, str]], groups: Sequence[Sequence[str]] = ()
) -> Iterator[Finding]:
    if pairs:
        names, details = zip(*pairs, strict=True)
        shown = details if any(details) else ()
        yield Finding(
            kind, KINDS[kind].severity, names, details=shown, groups=tuple(map(tuple, groups))
        )


def _broken(names_and_reasons: Sequence[tuple[str, str]], *, skipped: bool) -> Iterator[Finding]:
    """Images that cannot be decoded: a run stops at them, unless it leaves them out."""
    for each in _finding("broken", names_and_reasons):
        if skipped:
            each = dataclasses.replace(each, severity="warning")
        yield each


def _same(images: Sequence[ReportedImage], looks: ImageLooks) -> Iterator[Finding]:
    groups = of_same_bytes(looks.contents)
    yield from _across("held_out_same", images, groups)
    yield from _within("duplicate", images, groups)


def _alike(images: Sequence[ReportedImage], looks: ImageLooks) -> Iterator[Finding]:
    """Images that look alike, one of each content."""
    first: dict[bytes, int] = {}
    for at, content in enumerate(looks.contents):
        if content and at not in looks.broken:
            # A held-out image of the same bytes is told already.
            first.setdefault(content, at)
    places = sorted(first.values())
    found = near_duplicates(looks.looks[places]) if places else []
    groups = [[places[at] for at in group] for group in found]
    yield from _across("held_out_near", images, groups)
    yield from _within("near_duplicate", images, groups)


def _across(
    kind: str, images: Sequence[ReportedImage], groups: Sequence[Sequence[int]]
) -> Iterator[Finding]:
    """Groups that hold trained and held-out images."""
    pairs, notes = [], []
    for group in groups:
        held = [at for at in group if images[at].role == "validation"]
        trained = [at for at in group if images[at].role != "validation"]
        if held and trained:
            pairs += [(images[at].name, f"trained: {images[trained[0]].name}") for at in held]
            notes.append([images[at].name for at in group])
    yield from _finding(kind, pairs, notes)


def _within(
    kind: str, images: Sequence[ReportedImage], groups: Sequence[Sequence[int]]
) -> Iterator[Finding]:
    """Groups of trained images; an image counts as one that is there too often from its second."""
    pairs, notes = [], []
    for group in groups:
        names = [images[at].name for at in group if images[at].role != "validation"]
        if len(names) > 1:
            pairs += [(name, f"as {names[0]}") for name in names[1:]]
            notes.append(names)
    yield from _finding(kind, pairs, notes)


def _flat(images: Sequence[ReportedImage], looks: ImageLooks) -> Iterator[Finding]:
    flat = np.flatnonzero(is_flat(looks.looks))
    yield from _finding(
        "blank", [(images[at].name, "") for at in flat.tolist() if at not in looks.broken]
    )


def _moving(
    clips: Sequence[ReportedImage], progress: Callable[[int], None]
) -> tuple[list[Finding], float]:
    """Parts of clips that stand still, have cuts or cannot be decoded; and seconds it took."""
    start, notes = time.perf_counter(), []
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        try:
            for done, found in enumerate(pool.map(_watched, clips), start=1):
                notes += ((kind, clips[done - 1].name, detail) for kind, detail in found)
                progress(done)
        finally:
            # Whoever watches may end it: what waits is then not begun.
            pool.shutdown(wait=False, cancel_futures=True)
    return list(motion_findings(notes)), time.perf_counter() - start


def _watched(image: ReportedImage) -> list[tuple[str, str]]:
    assert image.clip is not None
    motion = Motion(image.clip)
    try:
        for frame in read_frames(image.path, image.clip):
            motion.look(frame)
    except DatasetError as error:
        return [("broken", error.found)]
    return list(motion.found())


def _controls(images: Sequence[ReportedImage]) -> Iterator[Finding]:
    pairs = []
    for image in images:
        for control in image.controls:
            size = control.width, control.height
            if control.width and not same_shape((image.width, image.height), size):
                sizes = f"{_size(size)} beside {_size((image.width, image.height))}"
                pairs.append((image.name, sizes + turned_note(image.path, size)))
                break
    yield from _finding("control_shape", pairs)


@dataclass(frozen=True, slots=True)
class _Mask:
    """What a mask holds: its darkest and brightest value, and the middle of its white."""

    darkest: int
    brightest: int
    focus: tuple[float, float]


def _mask_of(image: ReportedImage, dataset: DatasetSection) -> _Mask | None:
    """Read an image's mask; None where there is none, or none that fits."""
    if image.mask is None or not image.mask.width:
        return None
    alpha = image.mask.path == image.path
    size = image.width, image.height
    invert = image.mask.inverted
    try:
        mask = read_mask(image.mask.path, size, dataset.animated, transparency=alpha, invert=invert)
    except DatasetError:
        return None
    darkest, brightest = mask.getextrema()
    return _Mask(int(str(darkest)), int(str(brightest)), center_of_mass(mask))


def _focused(image: ReportedImage, mask: _Mask | None, dataset: DatasetSection) -> ReportedImage:
    """Where the mask decides what is kept, it is known now."""
    if mask is None or dataset.crop != "mask" or image.moved:
        return image
    size = image.width, image.height
    placements = tuple(Placement.of(size, at.bucket, "mask", mask.focus) for at in image.placements)
    return dataclasses.replace(image, placements=placements)


def _masks(images: Sequence[ReportedImage], masks: Sequence[_Mask | None]) -> Iterator[Finding]:
    empty, full = [], []
    for image, mask in zip(images, masks, strict=True):
        if mask is not None and mask.brightest <= _BLACK:
            empty.append((image.name, ""))
        elif mask is not None and mask.darkest >= _WHITE:
            full.append((image.name, ""))
    yield from _finding("mask_empty", empty)
    yield from _finding("mask_full", full)


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
