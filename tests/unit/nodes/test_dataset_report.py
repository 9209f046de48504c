"""What the strip and the dialog say of a folder is what the trainer would do with it."""

import io

import pytest
from PIL import Image

from tests.fixtures.clip_files import write_clip
from tests.fixtures.tables import table
from trainer_core.config import DatasetSection
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.crop import fit_to_bucket, kept_box
from trainer_core.data.image import open_image
from trainer_core.data.sources.scan_folder import scan
from trainer_core.types import Bucket


@pytest.fixture
def folder(tmp_path):
    for number, size in enumerate([(300, 200), (200, 300), (500, 100), (256, 256), (90, 60)]):
        Image.new("RGB", size, (number, 0, 0)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.txt").write_text(f"image {number}")
    return tmp_path


@pytest.fixture
def report(dataset_report, allowed):
    def report(folder, **given):
        settings = dataset_report.read_settings(folder, {"resolution": 256, **given})
        return dataset_report.Report(settings, allowed([folder]))

    return report


def kinds(item):
    return [problem["kind"] for problem in item["problems"]]


@pytest.mark.parametrize("upscale", [False, True])
def test_sizes_and_crops_are_those_of_the_training(folder, report, upscale):
    settings = DatasetSection(path=str(folder), resolution=256, upscale=upscale)
    planned = plan_buckets(scan(settings).samples, settings, 32, lambda *size: size[:2]).samples
    items = report(folder, upscale=upscale).items
    for item, plan in zip(items, planned, strict=True):
        assert item["name"] == plan.sample.name
        assert item["bucket"] == [plan.bucket.width, plan.bucket.height]
        left, top, right, bottom = item["crop"]
        kept = (right - left) * item["width"], (bottom - top) * item["height"]
        assert kept[0] / kept[1] == pytest.approx(plan.bucket.width / plan.bucket.height)
        assert 0 <= left <= right <= 1
        assert 0 <= top <= bottom <= 1


@pytest.mark.parametrize("size", [(300, 200), (97, 300), (64, 65), (640, 64)])
def test_the_kept_box_is_what_reaches_the_bucket(size):
    """Outside of it a pixel may have any colour; inside it counts."""
    image = Image.new("RGB", size, "white")
    left, top, right, bottom = kept_box(size, Bucket(64, 64))
    inner = Image.new("RGB", (int(right - left) - 2, int(bottom - top) - 2), "black")
    image.paste(inner, (int(left) + 2, int(top) + 2))
    assert fit_to_bucket(image, Bucket(64, 64)).getpixel((32, 32)) == (0, 0, 0)
    assert max(fit_to_bucket(image, Bucket(64, 64)).getpixel((0, 0))) > 0


@pytest.mark.parametrize(
    ("crop", "edges"),
    [("center", (0.25, 0.75)), ("top", (0.0, 0.5)), ("mask", (0.5, 1.0)), ("stretch", (0.0, 1.0))],
)
def test_the_strip_shows_the_crop_that_is_chosen(tmp_path, report, crop, edges):
    folder = tmp_path / "cropped"
    folder.mkdir()
    Image.new("RGB", (300, 600)).save(folder / "a.png")
    (folder / "a.txt").write_text("a tower")
    mask = Image.new("L", (300, 600))
    mask.paste(255, (0, 500, 300, 600))
    mask.save(folder / "a_mask.png")
    (item,) = report(folder, crop=crop, max_aspect_ratio=1.0).items
    _left, top, _right, bottom = item["crop"]
    assert (top, bottom) == pytest.approx(edges)


def test_each_image_says_what_is_wrong_with_it(folder, report):
    (folder / "0.txt").unlink()
    (folder / "1.txt").write_text("  ")
    for name in ("2.png", "3_mask.png"):
        (folder / name).write_bytes(b"broken")
    Image.new("RGB", (20, 20)).save(folder / "5.png")
    frames = [Image.new("RGB", (256, 256), color) for color in ("red", "blue")]
    frames[0].save(folder / "6.webp", save_all=True, append_images=frames[1:])
    (folder / "7.heic").write_bytes(b"x")
    for name in ("5", "6", "lone"):
        (folder / f"{name}.txt").write_text("text")
    made = report(folder)
    found = {item["name"]: kinds(item) for item in made.items}
    assert found == {
        "0.png": ["missing_caption"],
        "1.png": ["missing_caption"],
        "2.png": ["unreadable"],
        "3.png": ["unreadable"],
        "4.png": ["small"],
        "5.png": ["tiny"],
        "6.webp": ["animated"],
        "7.heic": ["unreadable"],
    }
    assert made.others[0] == "lone.txt has no image of the same name"
    assert "3.png" not in str(made.others)
    page = made.page(2, 3)
    assert [item["name"] for item in page["items"]] == ["2.png", "3.png", "4.png"]
    assert (page["total"], page["uncaptioned"], page["first"]) == (8, 2, 2)
    assert {each["kind"]: (each["count"], each["first"]) for each in page["problems"]} == {
        "unreadable": (3, 2),
        "animated": (1, 6),
        "missing_caption": (2, 0),
        "tiny": (1, 5),
        "small": (1, 4),
    }


def test_a_caption_that_is_no_text_marks_its_image_alone(folder, report):
    (folder / "1.txt").write_bytes("été".encode("latin-1"))
    made = report(folder, unreadable="skip", missing_caption="skip")
    assert [kinds(item) for item in made.items[:3]] == [[], ["unreadable_caption"], ["cropped"]]
    (problem,) = made.items[1]["problems"]
    assert problem["grave"]
    assert "UTF-8" in problem["text"]
    assert made.page(0, 9)["problems"][0] == {
        "kind": "unreadable_caption",
        "count": 1,
        "words": "caption cannot be read",
        "first": 1,
    }


def test_a_report_is_read_again_when_a_file_changes(folder, dataset_report, allowed):
    reports, settings = dataset_report.Reports(), dataset_report.read_settings(folder, {})
    first = reports.get(settings, allowed([folder]))
    assert reports.get(settings, allowed([folder])) is first
    (folder / "0.txt").write_text("another text")
    assert reports.get(settings, allowed([folder])) is not first


@pytest.mark.parametrize(
    "given", [{"resolution": 3}, {"resolution": "x"}, {"caption_extension": "/../x"}]
)
def test_settings_out_of_bounds_are_refused(folder, dataset_report, given):
    with pytest.raises(Exception, match=next(iter(given))):
        dataset_report.read_settings(folder, given)


@pytest.mark.parametrize("name", [*table(__file__, "no images of the folder"), "x" * 5000 + ".png"])
def test_only_images_of_the_folder_are_shown(tmp_path, dataset_report, allowed, name):
    folder, outside = tmp_path / "in", tmp_path / "elsewhere"
    folder.mkdir()
    outside.mkdir()
    Image.new("RGB", (8, 8)).save(outside / "0.png")
    Image.new("RGB", (8, 8)).save(folder / ".x.png")
    (folder / "link.png").symlink_to(outside / "0.png")
    (folder / "out").symlink_to(outside)
    with pytest.raises(Exception, match="image"):
        dataset_report.image_below(folder, name, allowed([folder]))


def test_thumbnails_are_upright_small_and_kept_within_a_limit(tmp_path, dataset_report):
    tags = Image.Exif()
    tags[274] = 6
    for number in range(3):
        Image.new("RGB", (800, 400), (80 * number, 0, 0)).save(
            tmp_path / f"{number}.jpg", exif=tags
        )
    first = dataset_report.Thumbnails()
    made = first.get(tmp_path / "0.jpg", large=False)
    assert first.get(tmp_path / "0.jpg", large=False) is made
    (tmp_path / "made.webp").write_bytes(made)
    assert open_image(tmp_path / "made.webp").size == (128, 256)
    (tmp_path / "made.webp").write_bytes(first.get(tmp_path / "0.jpg", large=True))
    assert open_image(tmp_path / "made.webp").size == (400, 800)
    small = dataset_report.Thumbnails(len(made) * 3 // 2)
    for number in range(3):
        small.get(tmp_path / f"{number}.jpg", large=False)
    assert len(small._kept) == 1


def test_clips_are_shown_with_their_parts(tmp_path, report, dataset_report, allowed):
    pytest.importorskip("av")
    Image.new("RGB", (300, 200)).save(tmp_path / "b.png")
    write_clip(tmp_path / "a.mp4", 60, size=(64, 48))  # 2.5 seconds
    (tmp_path / "c.mp4").write_bytes(b"none")
    found = report(tmp_path, missing_caption="empty", frames=17, fps=0.0)
    page = found.page(0, 9)
    assert (page["total"], page["clips"]) == (3, 1)
    clip, image, broken = page["items"]
    assert (clip["parts"], clip["width"], clip["height"]) == ([17, 17], 64, 48)
    assert "parts" not in image
    assert kinds(broken) == ["unreadable"]
    path = dataset_report.image_below(tmp_path, "a.mp4", allowed([tmp_path]))
    for large, frames in ((False, 1), (True, 20)):
        shown = Image.open(io.BytesIO(dataset_report.THUMBNAILS.get(path, large=large)))
        assert (shown.size, getattr(shown, "n_frames", 1)) == ((64, 48), frames)
    moving = tmp_path / "d.webp"
    first, *rest = (Image.new("RGB", (64, 48), (20 * each, 0, 0)) for each in range(10))
    first.save(moving, save_all=True, append_images=rest, duration=125)
    shown = Image.open(io.BytesIO(dataset_report.THUMBNAILS.get(moving, large=True)))
    assert shown.n_frames == 10


def test_a_clip_whose_frame_has_changed_is_shown_as_it_is_now(tmp_path, report, dataset_report):
    frames, shown = tmp_path / "a.frames", {}
    frames.mkdir()
    for color in ("red", "blue"):
        for number in range(9):
            Image.new("RGB", (64, 64), color).save(frames / f"{number}.png")
        (clip,) = report(tmp_path, missing_caption="empty", frames=9).page(0, 9)["items"]
        shown[clip["version"]] = dataset_report.THUMBNAILS.get(frames, large=False)
    assert len(shown) == len({*shown.values()}) == 2
