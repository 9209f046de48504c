"""Which clips of a folder are trained, in which parts, and what is said of the others."""

import json
import re
import shutil

import pytest
from PIL import Image

from tests.fixtures.clip_files import write_clip
from tests.fixtures.scanned_folder import names, settings
from trainer_core.data.file_memory import FileMemory
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.data.sources.scan_folder import scan
from trainer_core.errors import DatasetError
from trainer_core.filesystem.allowed_folders import AllowedFolders
from trainer_core.types import ANY_CLIPS, FrameGrid

pytest.importorskip("av")

GRID = FrameGrid(4, 16.0)
FRAMES = {f"a.frames/{number}.png": None for number in range(11)}
LAST = {"trigger_word": "ohwx"}
ROW = json.dumps({"file_name": "b.mp4", "text": "row"})


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Seconds to a clip that long."""
    folder = tmp_path_factory.mktemp("clips")
    return {
        seconds: write_clip(
            folder / f"{seconds}.mp4", round(24 * seconds), codec="mpeg4", size=(48, 32)
        )
        for seconds in (0.125, 1, 5)
    }


@pytest.fixture
def folder(tmp_path, clips, paint):
    """Write a folder: names to a caption, to the seconds of a clip, or to None for an image."""

    def write(files):
        for name, content in files.items():
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                paint(path, width=48, height=32)
            elif isinstance(content, str):
                path.write_text(content)
            else:
                shutil.copy(clips[content], path)
        return tmp_path / "data"

    return write


# Files; settings; names of samples; words that are told, or none.
TRAINED = {
    "a clip of one part": ({"a.mp4": 1, "a.txt": "x"}, {}, ["a.mp4"], None),
    "several parts": ({"a.mp4": 5, "a.txt": "x"}, {}, ["a.mp4 #1", "a.mp4 #2"], None),
    "max_clips": ({"a.mp4": 5, "a.txt": "x"}, {"max_clips": 1}, ["a.mp4"], None),
    "fewer per second": ({"a.mp4": 5, "a.txt": "x"}, {"fps": 8.0}, ["a.mp4"], None),
    "shorter": (
        {"a.mp4": 1, "a.txt": "x"}, {"frames": 8}, [f"a.mp4 #{n}" for n in (1, 2, 3)], None
    ),
    "upper case": ({"a.MP4": 1, "a.txt": "x"}, {}, ["a.MP4"], None),
    "trigger word": ({"a.mp4": 1, "a.txt": "x"}, LAST, ["a.mp4"], None),
    "no caption": ({"a.mp4": 1}, {"missing_caption": "skip"}, [], "a.mp4 has no caption file"),
    "images beside": (
        {"a.mp4": 1, "b.png": None}, {"missing_caption": "empty"}, ["a.mp4", "b.png"], None
    ),
    "one caption for two": (
        {"a.mp4": 1, "a.png": None, "a.txt": "x"}, {}, ["a.mp4", "a.png"], "share one caption"
    ),
    "too short": (
        {"a.mp4": 0.125, "a.txt": "x", "b.mp4": 1, "b.txt": "x"},
        {"unreadable": "skip"},
        ["b.mp4"],
        "a.mp4 has 2 frames at 16 a second, and the shortest clip that is trained has 5",
    ),
    "kohya": ({"10_cat/a.mp4": 1}, {}, ["10_cat/a.mp4"], "10 times"),
    "a folder of that name": ({"x.mp4/a.png": None, "x.mp4/a.txt": "x"}, {}, ["x.mp4/a.png"], None),
    "a metadata file": (
        {"b.mp4": 5, "metadata.jsonl": ROW}, {}, ["b.mp4 #1", "b.mp4 #2"], None
    ),
    "left out by hand": (
        {"a.mp4": 1, "b.mp4": 1, ".adapter_trainer.json": '{"left_out": ["a.mp4"]}'},
        {"missing_caption": "empty"}, ["b.mp4"], "left out by hand: a.mp4",
    ),
    "frames": ({**FRAMES, "a.txt": "x"}, {}, ["a.frames"], None),
    "frames, in parts": (
        {**FRAMES, "a.txt": "x"}, {"frames": 5, "fps": 8.0}, ["a.frames #1", "a.frames #2"], None
    ),
    "frames of a row": (
        {**FRAMES, "metadata.jsonl": ROW.replace("b.mp4", "a.frames")}, {}, ["a.frames"], None
    ),
    "a still mask": ({"a.mp4": 1, "a.txt": "x", "a_mask.png": None}, {}, ["a.mp4"], None),
    "a mask that moves, as far as it goes": (
        {"a.mp4": 5, "a.txt": "x", "a_mask.mp4": 1}, {}, ["a.mp4"], None
    ),
    "a mask of frames": (
        {"a.mp4": 1, "a.txt": "x"} | {name.replace("a.", "a_mask."): None for name in FRAMES},
        {}, ["a.mp4"], None,
    ),
    "masks in a folder": (
        {"training_images/a.mp4": 1, "training_images/a.txt": "x", "masks/a.mp4": 1,
         "control_images/a.mp4": 1}, {}, ["training_images/a.mp4"], None,
    ),
    "control clips, as far as they go": (
        {"training_images/a.mp4": 5, "training_images/a.txt": "x", "control_images/a.mp4": 1},
        {}, ["training_images/a.mp4"], None,
    ),
    "a control clip beside": (
        {"a.mp4": 5, "a.txt": "x", "a_control.mp4": 5}, {}, ["a.mp4 #1", "a.mp4 #2"], None
    ),
}  # fmt: skip


def moving(path, frames, size=(48, 32), kind=None):
    first, *rest = (Image.new("L", size, 40 * each) for each in range(frames))
    first.save(path, kind, save_all=True, append_images=rest, duration=60)


ODD = {
    "no frame": ("a.gif", lambda path: path.write_bytes(b"GIF89a0\0 \0\0\0\0;"), "cannot be read"),
    "too short": ("a.gif", lambda path: moving(path, 3), "has 2 frames .*clips that are long"),
    "too large": ("a.gif", lambda path: moving(path, 2, (9000, 8000)), "implausible size"),
    "of no clip": ("a.png", lambda path: moving(path, 6, kind="PNG"), "a.png has several frames"),
}


@pytest.mark.parametrize(("name", "write", "words"), ODD.values(), ids=ODD)
def test_an_animated_image_that_is_no_clip_is_refused_in_words(tmp_path, name, write, words):
    write(tmp_path / name)
    with pytest.raises(DatasetError, match=f"(?s){words}"):
        scan(settings(tmp_path, missing_caption="empty"), grid=GRID)


@pytest.mark.parametrize(("files", "options", "wanted", "told"), TRAINED.values(), ids=TRAINED)
def test_clips_of_a_folder(folder, files, options, wanted, told):
    root = folder(files)
    if not wanted:
        with pytest.raises(DatasetError, match=re.escape(told)):
            scan(settings(root, **options), grid=GRID)
        return
    found = scan(settings(root, **options), grid=GRID)
    assert names(found) == wanted
    assert bool(found.problems) == (told is not None)
    assert told is None or told in " ".join(found.problems)
    for sample in found.samples:
        clip = sample.name.lower().partition(" #")[0].endswith((".mp4", ".frames"))
        assert (sample.clip is not None) == clip
        assert (sample.width, sample.height) == (48, 32)
        if clip:
            assert sample.clip.frames in GRID.lengths(options.get("frames", 33))
            assert sample.clip.rate == options.get("fps", 16.0)
    assert ("trigger_word" in options) == (found.samples[0].caption == "ohwx, x")


# Files; settings; what is found; what is to be done.
REFUSED = {
    "too short": ({"a.mp4": 0.125, "a.txt": "x"}, {}, "has 2 frames at 16", "export the clips"),
    "cut short": ({"a.mp4": "no clip", "a.txt": "x"}, {}, "cannot be read as a clip", "export"),
    "a broken mask": (
        {"a.mp4": 1, "a.txt": "x", "a_mask.mp4": "no clip"}, {}, "a_mask.mp4 cannot be", "export"
    ),
    "no frames": ({"a.frames/a.txt": "x", "a.txt": "x"}, {}, "holds no images", "again"),
    "too few frames": (
        {"a.frames/1.png": None, "a.txt": "x"}, {}, "has 1 frames at 16", "export the clips"
    ),
    "a frame cut short": ({**FRAMES, "a.frames/5.png": "", "a.txt": "x"}, {}, "5.png", "export"),
    "no folder": ({"a.frames": "x", "a.txt": "x"}, {}, "Not a directory", "again"),
    "no length": ({"a.mp4": 1, "a.txt": "x"}, {"frames": 3}, "dataset.frames: 3", "to 5 or more"),
    "a control image": (
        {"a.mp4": 1, "a.txt": "x", "a_control.png": None}, {}, "is a clip with a control", "own"
    ),
    "a mask that moves and decides": (
        {"a.mp4": 1, "a.txt": "x", "a_mask.mp4": 1}, {"crop": "mask"}, "a mask that moves", "own"
    ),
    "a broken frame of a mask": (
        {"a.mp4": 1, "a.txt": "x", "a_mask.frames/1.png": None, "a_mask.frames/2.png": "no image"},
        {}, "a_mask.frames", "again",
    ),
    "a clip as control image": (
        {"a.png": None, "a.txt": "x", "a_control.mp4": 1},
        {}, "a_control.mp4 is a clip in the place of a control image", "Remove",
    ),
    "a clip as mask": (
        {"a.png": None, "a.txt": "x", "a_mask.mp4": 1}, {}, "a_mask.mp4 is a clip in the", "Remove"
    ),
    "a pair": (
        {"training_images/a.mp4": 1, "training_images/a.txt": "x", "control_images/a.png": None},
        {}, "training_images/a.mp4 is a clip with a control image", "own",
    ),
    "layers": (
        {"training_images/a.mp4": 1, "training_images/a.txt": "x", "layers/a_0.png": None},
        {"layout": "layered"}, "a.mp4 is a clip with layers", "own",
    ),
    "a control image of a row": (
        {"b.mp4": 1, "c.png": None,
         "metadata.jsonl": ROW.replace("}", ', "control_image": "c.png"}')},
        {}, "b.mp4 is a clip with a control image", "own",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "options", "words", "remedy"), REFUSED.values(), ids=REFUSED)
def test_clips_that_would_be_trained_wrongly_are_refused(folder, files, options, words, remedy):
    root = folder(files)
    with pytest.raises(DatasetError) as error:
        scan(settings(root, **options), grid=GRID)
    assert words in error.value.found
    assert remedy in error.value.remedy


def test_frames_of_another_size_are_refused(folder, paint):
    root = folder({**FRAMES, "a.txt": "x"})
    paint(root / "a.frames/11.png", width=32, height=48)
    with pytest.raises(DatasetError, match=r"holds 11\.png of 32 x 48 pixels"):
        scan(settings(root), grid=GRID)


def test_a_base_of_images_leaves_frames_out_and_says_so(folder):
    found = scan(settings(folder({**FRAMES, "b.png": None, "a.txt": "x", "b.txt": "x"})))
    assert names(found) == ["b.png"]
    assert any("clip" in each and "a.frames" in each for each in found.problems)


@pytest.mark.parametrize("name", ["b.frames", "a.frames/b.png", "b.mp4"])
def test_a_link_out_of_what_is_allowed_is_refused(folder, clips, tmp_path, name):
    root = folder({**FRAMES, "a.txt": "x"})
    (root / name).symlink_to(clips[1] if name == "b.mp4" else tmp_path)
    with pytest.raises(DatasetError, match=re.escape(name)):
        scan(settings(root), AllowedFolders([root]), grid=GRID)


def test_a_clip_that_ends_early_is_told_and_trained(folder, tmp_path):
    root = folder({"a.txt": "x"})
    content = write_clip(tmp_path / "whole.mkv").read_bytes()
    (root / "a.mkv").write_bytes(content[: len(content) // 2])
    found = scan(settings(root, frames=5), grid=GRID)
    assert "a.mkv #1" in names(found)
    assert "s before its header says" in " ".join(found.problems)


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_a_clip_are_held_out_together(folder, seed):
    root = folder({f"{name}.mp4": 5 for name in "abcdef"})
    chosen = settings(root, missing_caption="empty", frames=9, validation={"share": 0.4})
    held: dict[str, set[bool]] = {}
    for sample in scan_all(chosen, seed=seed, grid=GRID).samples:
        held.setdefault(sample.name.partition(" #")[0], set()).add(sample.validation)
    assert all(len(each) == 1 for each in held.values())
    assert {each for sides in held.values() for each in sides} == {True, False}


def test_a_single_clip_is_not_torn_apart_for_validation(folder):
    root = folder({"a.mp4": 5, "a.txt": "x"})
    found = scan_all(settings(root, validation={"share": 0.5}), grid=GRID)
    assert not any(sample.validation for sample in found.samples)
    assert "holds nothing out" in " ".join(found.problems)


@pytest.mark.parametrize("changed", [False, True])
def test_an_unchanged_clip_is_not_read_again(folder, tmp_path, clips, changed, monkeypatch):
    root = folder({"a.mp4": 5, "a.txt": "x"})
    monkeypatch.setattr("time.time_ns", lambda: 2**62)  # long behind every file's time
    for again in (False, True):
        memory = FileMemory(tmp_path / "cache")
        found = scan(settings(root), remembered=memory, grid=ANY_CLIPS)
        if not again:
            first = found.samples
            memory.save()
            if changed:
                shutil.copy(clips[1], root / "a.mp4")
            else:
                monkeypatch.delattr("trainer_core.data.file_memory.clip_facts")
    assert (found.samples == first) != changed
