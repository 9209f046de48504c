"""Each finding on a folder that has it, and on the same folder without."""

import dataclasses
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainer_core.config import DatasetSection
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.captions.length import TextLimit
from trainer_core.data.report.dataset_report import DatasetReport
from trainer_core.data.report.finding_kinds import KINDS
from trainer_core.data.report.image_findings import find_in_images
from trainer_core.data.report.make_report import Batching, make_report, warnings_before
from trainer_core.data.report.report_text import report_text
from trainer_core.data.sources.scan_folder import survey
from trainer_core.errors import DatasetError

MULTIPLE = 16
LIMIT = TextLimit(lambda text, controls: len(text.split()), 12)


def paint(path: Path, size: tuple[int, int] = (64, 64), seed: int | None = None) -> Path:
    """An image of its own look; of one seed they look alike at every size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number = sum(path.name.encode()) if seed is None else seed
    coarse = np.random.default_rng(number).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
    return path


def report_of(
    folder: Path, held_out: tuple[str, ...] = (), batch: int = 1, **given: object
) -> DatasetReport:
    """The whole report of a folder, decoded."""
    settings = DatasetSection(path=str(folder), **{"resolution": 64, **given})
    found = survey(settings)
    samples = tuple(
        dataclasses.replace(each, validation=each.name in held_out) for each in found.samples
    )
    small = [each for each in samples if min(each.width, each.height) < MULTIPLE]
    small = [] if settings.upscale else small
    sized = [each for each in samples if each not in small]
    plan = plan_buckets(sized, settings, MULTIPLE, lambda width, height, area: (width, height))
    found = dataclasses.replace(found, samples=samples)
    report = make_report(found, plan.samples, settings, Batching(batch, 1, 100), LIMIT, small)
    return find_in_images(report, settings)


def clean(folder: Path) -> None:
    """Six images that nothing is wrong with."""
    for number in range(6):
        caption(paint(folder / f"{number}.png", seed=number), f"ohwx a thing, view {number}")


def caption(image: Path, text: str) -> Path:
    """Write an image's caption."""
    image.with_suffix(".txt").write_text(text, encoding="utf-8")
    return image


def again(folder: Path, change: Callable[[Image.Image], Image.Image]) -> None:
    """Image 0 once more, changed."""
    path = caption(folder / "z.png", "ohwx another")
    change(Image.open(folder / "0.png")).save(path)


def copied(folder: Path, *, linked: bool = False) -> None:
    """Image 0 once more, byte for byte."""
    path = caption(folder / "z.png", "ohwx another")
    path.hardlink_to(folder / "0.png") if linked else shutil.copy(folder / "0.png", path)


def masks(folder: Path, value: int, size: tuple[int, int] = (64, 64), count: int = 6) -> None:
    """Mask files of one grey."""
    for number in range(count):
        mask = Image.new("L", size, 255 if number else value)
        mask.putpixel((0, 0), 255 - value if number else value)
        mask.save(folder / f"{number}_mask.png")


def pairs(folder: Path, size: tuple[int, int]) -> None:
    """The folder's images as pairs; the control of image 0 has a size of its own."""
    for number in range(6):
        for kind in ("png", "txt"):
            name = f"{number}.{kind}"
            (folder / "training_images").mkdir(exist_ok=True)
            (folder / name).rename(folder / "training_images" / name)
        of = size if number == 0 else (64, 64)
        paint(folder / "control_images" / f"{number}.png", of, seed=100 + number)


def write(name: str, content: bytes) -> Callable[[Path], object]:
    """Put a file of some bytes into the folder."""
    return lambda folder: (folder / name).write_bytes(content)


CASES: dict[str, tuple[Callable[[Path], object], dict]] = {
    "unreadable": (write("5.png", b"no image"), {}),
    "unreadable_caption": (write("5.txt", b"\xff\xfe\x00\xd8"), {}),
    "missing_caption": (lambda folder: (folder / "5.txt").unlink(), {}),
    "missing_image": (lambda folder: (folder / "5.png").unlink(), {}),
    "too_small": (lambda f: caption(paint(f / "z.png", (8, 8)), "ohwx tiny"), {}),
    "held_out_trained": (partial(copied, linked=True), {"held_out": ("z.png",)}),
    "held_out_same": (copied, {"held_out": ("z.png",)}),
    "held_out_near": (
        lambda f: again(f, lambda image: image.resize((80, 80))),
        {"held_out": ("z.png",)},
    ),
    "duplicate": (copied, {}),
    "near_duplicate": (lambda f: again(f, lambda image: image.resize((96, 96))), {}),
    "blank": (
        lambda f: Image.new("RGB", (64, 64), "white").save(caption(f / "z.png", "ohwx white")),
        {},
    ),
    "broken": (lambda f: (f / "5.png").write_bytes((f / "5.png").read_bytes()[:-300]), {}),
    "cropped": (lambda f: caption(paint(f / "z.png", (320, 64)), "ohwx wide"), {}),
    "upscaled": (lambda f: caption(paint(f / "z.png", (40, 40)), "ohwx"), {"upscale": True}),
    "small": (lambda f: caption(paint(f / "z.png", (32, 32)), "ohwx little"), {}),
    "transparent": (
        lambda f: Image.new("RGBA", (64, 64), (9, 9, 9, 9)).save(caption(f / "z.png", "ohwx")),
        {},
    ),
    "stretched": (lambda f: caption(paint(f / "z.png", (320, 64)), "ohwx"), {"crop": "stretch"}),
    "control_shape": (lambda f: pairs(f, (96, 64)), {}),
    "mask_shape": (lambda f: masks(f, 0, (64, 32), count=1), {}),
    "mask_empty": (lambda f: masks(f, 0), {}),
    "mask_full": (lambda f: masks(f, 255), {}),
    "caption_cut": (lambda f: caption(f / "5.png", "ohwx " + "word " * 20), {}),
    "trigger_missing": (lambda f: caption(f / "5.png", "a thing without"), {}),
    "caption_empty": (lambda f: (f / "5.txt").write_text(""), {"missing_caption": "empty"}),
    "caption_same": (lambda f: caption(f / "5.png", "ohwx a thing, view 4"), {}),
    "short_bucket": (lambda f: None, {"batch": 8}),
    "few_images": (lambda f: [path.unlink() for n in range(3) for path in f.glob(f"{n}.*")], {}),
    "missing_control": (lambda f: (pairs(f, (64, 64)), (f / "control_images/5.png").unlink()), {}),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "set"
    clean(place)
    return place


def kinds(report: DatasetReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def test_a_clean_folder_has_no_findings(folder):
    assert report_of(folder).findings == ()


@pytest.mark.parametrize("kind", CASES)
def test_a_finding_is_told_where_it_is(folder, kind):
    spoil, given = CASES[kind]
    if kind != "short_bucket":
        assert kind not in kinds(report_of(folder, **given))
    spoil(folder)
    report = report_of(folder, **given)
    assert kind in kinds(report)
    (finding,) = [each for each in report.findings if each.kind == kind]
    assert finding.severity == KINDS[kind].severity
    assert report.stops == any(each.severity == "error" for each in report.findings)
    if kind == "broken":
        assert report.stops
        assert not report_of(folder, unreadable="skip").stops
        assert "A run leaves it out. To" in report_text(report_of(folder, unreadable="skip"))
    text = report_text(report)
    assert finding.title in text
    assert KINDS[kind].remedy in text
    if kind != "few_images":
        # None of the others that a case may bring along stops a training.
        grave = {each.kind for each in report.findings if each.severity == "error"}
        assert grave <= {kind, "missing_image", "unreadable"}


def test_a_missing_decoder_is_told_once_with_how_to_install_it(folder, monkeypatch):
    for number in (5, 4):
        (folder / f"{number}.png").unlink()
        (folder / f"{number}.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    text = report_text(report_of(folder))
    assert text.count("pip install pillow-heif") == 1
    assert "2 images cannot be read" in text


def test_before_a_training_warnings_are_told_and_errors_stop(folder):
    settings = DatasetSection(path=str(folder), resolution=64)
    samples = survey(settings).samples
    assert warnings_before(samples, settings) == ()
    lacking = dataclasses.replace(samples[0], caption="no word")
    (told,) = warnings_before([lacking, *samples[1:]], settings)
    assert "0.png" in told
    assert "dataset.trigger_word" in told
    twice = dataclasses.replace(samples[0], name="other.png", validation=True)
    with pytest.raises(DatasetError) as refused:
        warnings_before([*samples, twice], settings)
    assert "other.png (trained as 0.png)" in refused.value.found
    assert refused.value.remedy == KINDS["held_out_trained"].remedy
