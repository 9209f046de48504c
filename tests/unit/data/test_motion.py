"""Parts of clips that stand still or change their scene are named, and no others."""

import numpy as np
import pytest
from PIL import Image

from tests.fixtures.clip_files import write_clip
from tests.fixtures.scanned_folder import settings
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.clips import read_frames
from trainer_core.data.motion import Motion
from trainer_core.data.report.contact_sheet import sheet_pages
from trainer_core.data.report.dataset_report import as_json
from trainer_core.data.report.html_page import report_page
from trainer_core.data.report.image_findings import find_in_images
from trainer_core.data.report.make_report import Batching, make_report
from trainer_core.data.report.thumbnails import thumbnails
from trainer_core.data.sources.scan_folder import scan
from trainer_core.types import ClipPart, FrameGrid

FRAMES, HIGH, WIDE = 33, 96, 128
RANDOM = np.random.default_rng(0)


def scene(seed):
    """An image of soft shapes, `[H, W, 3]`."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((WIDE, HIGH), Image.Resampling.BICUBIC))


ONE, OTHER = scene(1), scene(2)


def noisy(deviation):
    noise = RANDOM.normal(0, deviation, (FRAMES, HIGH, WIDE, 3))
    return [np.clip(ONE + each, 0, 255).astype(np.uint8) for each in noise]


def panned(pixels):
    return [np.roll(ONE, pixels * number, 1) for number in range(FRAMES)]


def spoken():
    """A still image in which a mouth of 3 x 3 % opens and closes."""
    images = [ONE.copy() for _ in range(FRAMES)]
    for number, image in enumerate(images):
        image[60:63, 60:64] = 255 * (number // 4 % 2)
    return images


def flashed():
    return [np.full_like(ONE, 255) if number == 16 else ONE for number in range(FRAMES)]


def faded():
    shares = np.linspace(0, 1, FRAMES)
    return [(ONE * (1 - each) + OTHER * each).astype(np.uint8) for each in shares]


def cut_at(*places):
    scenes = np.searchsorted(places, np.arange(FRAMES), side="right")
    return [(ONE, OTHER, scene(3))[number] for number in scenes]


CLIPS = {
    "still": ([ONE] * FRAMES, [("still", "from 1.00 to 3.06 s")]),
    "still with noise": (noisy(1), [("still", "from 1.00 to 3.06 s")]),
    "a small mouth": (spoken(), []),
    "a slow pan": (panned(1), []),
    "a fast pan": (panned(40), []),
    "a flash": (flashed(), []),
    "a fade": (faded(), []),
    "a cut": (cut_at(16), [("cut", "at 2.00 s")]),
    "two cuts": (cut_at(8, 24), [("cut", "at 1.50, 2.50 s")]),
    "a cut behind the first frame": (cut_at(1), [("cut", "at 1.06 s")]),
    "a cut before the last frame": (cut_at(32), [("cut", "at 3.00 s")]),
    "a cut in a fast pan": (
        [*panned(3)[:16], *(np.roll(OTHER, 3 * number, 1) for number in range(17))],
        [("cut", "at 2.00 s")],
    ),
}


@pytest.mark.parametrize(("images", "found"), CLIPS.values(), ids=CLIPS)
def test_what_may_be_a_mistake_is_found_with_its_time(images, found):
    motion = Motion(ClipPart(1.0, FRAMES, 16.0))
    for image in images:
        motion.look(Image.fromarray(image))
    assert list(motion.found()) == found


@pytest.fixture
def dataset(world):
    """A world of a clip of two scenes in two parts, one that stands still, and one that moves."""
    pytest.importorskip("av")
    world.grid = FrameGrid(4, 16.0)
    moving = {"rate": 16.0, "size": (WIDE, HIGH)}
    images = [np.roll(ONE if number < 50 else OTHER, 2 * number, 1) for number in range(70)]
    write_clip(world.data / "a.mp4", 70, images=images, **moving)
    write_clip(world.data / "b.mp4", 33, images=[ONE] * 33, **moving)
    write_clip(world.data / "c.mp4", 33, images=panned(2), **moving)
    for name in "abc":
        (world.data / f"{name}.txt").write_text(name)
    return world


def test_a_report_names_them_and_shows_three_frames(dataset):
    chosen = settings(dataset.data, resolution=64)
    found = scan(chosen, grid=dataset.grid)
    plan = plan_buckets(found.samples, chosen, 16, None)
    told = []
    report = find_in_images(
        make_report(found, plan.samples, chosen, Batching(1, 1, 10)),
        chosen,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (4, 4)
    by_kind = {
        each.kind: dict(zip(each.names, each.details, strict=False)) for each in report.findings
    }
    assert by_kind["cut"] == {"a.mp4 #2": "at 3.12 s"}
    assert by_kind["still"] == {"b.mp4": "from 0.00 to 2.06 s"}
    assert report.of("warning")[0].title == "1 clip changes its scene"
    assert as_json(report)["buckets"][0]["frames"] == 33
    page = report_page(report)
    assert page.count("<img") == 3 * 4
    assert "64 &times; 48 &times; 33" in page or "80 &times; 48 &times; 33" in page
    assert '<em class="warning">stands still</em>' in page
    (image,) = [each for each in report.images if each.name == "a.mp4 #2"]
    frames = list(read_frames(image.path, ClipPart(33 / 16, 33, 16.0)))
    shown = thumbnails([image], WIDE)[image.name]
    assert [*map(np.array_equal, shown, (frames[0], frames[16], frames[32]))] == [True] * 3
    (sheet,) = sheet_pages(report)
    cell = np.asarray(sheet)[44:244, 228:428]
    assert all(np.ptp(cell[66 * place : 66 * place + 66]) > 100 for place in range(3))


def test_a_run_names_them_once_when_it_encodes(dataset):
    dataset.options = {"flip": True, "flip_except": [], "more_resolutions": [48]}
    told = " ".join(dataset.build().problems)
    assert "1 clip changes its scene: a.mp4 (at 3.12 s)" in told
    assert "1 clip stands still: b.mp4 (from 0.00 to 2.06 s)" in told
    assert "c.mp4" not in told
    assert not dataset.build().problems
