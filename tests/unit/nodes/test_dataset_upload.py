"""What is dropped in a browser becomes a dataset folder, whole or not at all, and nothing else."""

import io
import os
import re
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from PIL import Image

from tests.fixtures.clip_files import write_clip
from trainer_core.filesystem.file_names import (
    CLIP_EXTENSIONS,
    FOREIGN_EXTENSIONS,
    FRAME_FOLDER,
    IMAGE_EXTENSIONS,
)


def image(color="red", size=(8, 6), form="PNG"):
    written = io.BytesIO()
    Image.new("RGB", size, color).save(written, form)
    return written.getvalue()


def archive(files, **options):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, **options) as made:
        for name, content in files:
            made.writestr(zipfile.ZipInfo(name) if "\\" in name else name, content)
    return written.getvalue()


def names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def drops(dataset_upload):
    return dataset_upload.Drops()


def drop(drops, root, files, name="my_images", adds=False):
    begun = drops.begin(root, name, adds=adds)
    for each, content in files:
        begun.take(each, content)
    return drops.finish(begun.token), begun.skipped


def test_images_and_captions_become_a_folder_and_a_taken_name_a_number(drops, tmp_path):
    (folder, added), skipped = drop(
        drops,
        tmp_path,
        [("a.png", image()), ("a.txt", "é".encode()), ("b.JPG", image(form="JPEG"))],
    )
    assert (folder, added, skipped) == ("my_images", 3, [])
    assert names(tmp_path) == ["my_images/a.png", "my_images/a.txt", "my_images/b.JPG"]
    assert drop(drops, tmp_path, [("a.png", image())])[0] == ("my_images_2", 1)
    assert entries(tmp_path) == ["my_images", "my_images_2"]


def test_nothing_is_seen_before_the_end_and_nothing_stays_of_what_was_cancelled(drops, tmp_path):
    begun = drops.begin(tmp_path, "cats", adds=False)
    begun.take("a.png", image())
    assert [name for name in entries(tmp_path) if not name.startswith(".")] == []
    drops.cancel(begun.token)
    assert entries(tmp_path) == []
    with pytest.raises(Exception, match="not known any more"):
        begun.take("b.png", image())
    with pytest.raises(Exception, match="not known any more"):
        drops.finish(begun.token)
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    ["", "..", ".cats", "_cats", "a/b", "/tmp/x", "C:\\x", "con", "a\0b", "a\u202eb", "x" * 101],
)
def test_no_other_folder_is_made(drops, tmp_path, name):
    with pytest.raises(Exception, match="folder"):
        drops.begin(tmp_path / "input", name, adds=False)
    assert not (tmp_path / "input").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("../a.png", None),
        ("/a.png", None),
        ("a/../../b.png", None),
        ("..\\..\\a.png", None),
        ("C:\\a.png", None),
        ("con.png", None),
        ("a\0.png", None),
        ("x" * 300 + ".png", None),
        ("/".join("abcdefghijk") + ".png", None),
        ("a.svg", b"<svg/>"),
        ("a.heic", b"x"),
        ("a.png", b"no image"),
        ("a.png", image(size=(40, 40))[:-40]),
        ("a.png", b""),
        ("a.txt", b"\xff\xfe\x00"),
        ("a.zip", b"PK no archive"),
    ],
)
def test_a_hostile_or_broken_file_is_refused_and_leaves_nothing(drops, tmp_path, name, content):
    begun = drops.begin(tmp_path / "input", "cats", adds=False)
    with pytest.raises(Exception, match="Found: ") as refusal:
        begun.take(name, image() if content is None else content)
    assert str(begun.staging) not in str(refusal.value)
    assert list(begun.staging.rglob("*.p*")) == []
    begun.take("good.png", image())
    assert drops.finish(begun.token) == ("cats", 1)
    assert names(tmp_path) == ["input/cats/good.png"]


def png_header(width, height):
    """A PNG that claims a size and has no pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def test_bombs_are_refused(drops, tmp_path, dataset_upload, monkeypatch):
    begun = drops.begin(tmp_path, "cats", adds=False)
    with pytest.raises(Exception, match="implausible size"):
        begun.take("a.png", png_header(60000, 60000))
    monkeypatch.setattr(dataset_upload, "LARGEST_FILE", 1000)
    begun.take("bomb.zip", archive([("a.txt", b"a" * 5000), ("b.txt", b"small")]))
    assert begun.skipped == [("a.txt", "a.txt is too large")]
    monkeypatch.setattr(dataset_upload, "MOST_FILES", 2)
    begun.take("many.zip", archive([("c.txt", b"1"), ("d.txt", b"2")]))
    assert len(begun.skipped) == 2
    monkeypatch.setattr(dataset_upload, "MOST_FILES", 20)
    monkeypatch.setattr(dataset_upload, "LARGEST_DROP", begun.size + 1500)
    begun.skipped.clear()
    begun.take("useless.zip", archive([(f"{n}.png", b"\0" * 900) for n in range(3)]))
    assert [why.partition(" ")[2] for _, why in begun.skipped][1:] == ["is too large"] * 2
    monkeypatch.setattr(dataset_upload, "_MOST_ENTRIES", 1)
    with pytest.raises(Exception, match="holds 2 files"):
        begun.take("many.zip", archive([("c.txt", b"1"), ("d.txt", b"2")]))


def test_an_archive_of_pairs_keeps_its_folders_and_leads_nowhere(drops, tmp_path):
    link = zipfile.ZipInfo("set/link.png")
    link.external_attr = 0o120777 << 16
    packed = archive(
        [
            ("set/training_images/e\u0301.png", image()),
            ("set/training_images/é.txt", b"text"),
            ("set/control_images/é.png", image("blue")),
            ("__MACOSX/set/._a.png", b"x"),
            ("set/.DS_Store", b"x"),
            ("../evil.png", image()),
            ("set\\..\\..\\evil.png", image()),
            ("set/aux.png", image()),
            ("set/broken.png", b"x"),
        ]
    )
    with zipfile.ZipFile(buffer := io.BytesIO(packed), "a") as made:
        made.writestr(link, "/etc/passwd")
    (folder, added), skipped = drop(drops, tmp_path / "input", [("set.zip", buffer.getvalue())])
    assert (folder, added, len(skipped)) == ("my_images", 3, 5)
    assert names(tmp_path) == [
        "input/my_images/control_images/é.png",
        "input/my_images/training_images/é.png",
        "input/my_images/training_images/é.txt",
    ]


def test_adding_changes_nothing_that_is_there(drops, tmp_path):
    drop(drops, tmp_path, [("a.png", image()), ("a.txt", b"old"), ("b.png", image("blue"))])
    added = [
        ("A.png", image("green")),
        ("A.txt", b"new"),
        ("b.png", image("blue")),
        ("b.txt", b"first words"),
        ("a.txt", b"other words"),
    ]
    begun = drops.begin(tmp_path, "my_images", adds=True)
    for name, content in added[:4]:
        begun.take(name, content)
    assert drops.finish(begun.token) == ("my_images", 3)
    assert begun.skipped == [("b.png", "it is there already")]
    assert names(tmp_path / "my_images") == [
        "A (2).png",
        "A (2).txt",
        "a.png",
        "a.txt",
        "b.png",
        "b.txt",
    ]
    (_, count), skipped = drop(drops, tmp_path, added[4:], adds=True)
    assert (count, skipped) == (0, [("a.txt", "its image has another caption already")])
    assert (tmp_path / "my_images" / "a.txt").read_bytes() == b"old"
    with pytest.raises(Exception, match="no folder other"):
        drops.begin(tmp_path, "other", adds=True)


PAIRED = "training_images/a"
BESIDE = {
    "controls": (PAIRED, "control_images/a_0", "control_images/a_1"),
    "layers": (PAIRED, "layers/a_0", "layers/a_1"),
    "masks": (PAIRED, "masks/a"),
    "masks of a flat folder": ("a", "a_mask"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_belongs_to_an_image_follows_it_to_another_name(drops, tmp_path, case):
    """Its caption too; an image beside them keeps its own name."""
    own, *others = BESIDE[case]

    def belonging(color):
        files = [(f"{own}.png", image(color)), (f"{own}.txt", b"a")]
        return files + [(f"{name}.png", image("white")) for name in others]

    drop(drops, tmp_path, belonging("red"))
    lone = ("training_images/lone.png" if "/" in own else "lone.png", image())
    (_, count), _ = drop(drops, tmp_path, [*belonging("blue"), lone], adds=True)
    renamed = {each.replace("/a", "/a (2)", 1) for each in others if "/" in each}
    renamed |= {each.replace("a", "a (2)", 1) for each in others if "/" not in each}
    expected = {f"{each}.png" for each in {*others, *renamed, own, f"{own} (2)"}}
    expected |= {f"{own}.txt", f"{own} (2).txt", lone[0]}
    assert set(names(tmp_path / "my_images")) == expected
    assert count == len(others) + 3


def test_an_error_in_the_middle_of_adding_takes_back_what_was_added(
    drops, tmp_path, dataset_upload, monkeypatch
):
    drop(drops, tmp_path, [("a.png", image())])
    begun = drops.begin(tmp_path, "my_images", adds=True)
    for name in ("b.png", "c.png"):
        begun.take(name, image("blue"))
    real, calls = dataset_upload.claim, []

    def failing(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(dataset_upload, "claim", failing)
    with pytest.raises(Exception, match="disk is full"):
        drops.finish(begun.token)
    assert names(tmp_path) == ["my_images/a.png"]


def test_what_a_killed_server_left_goes_with_the_next_drop(drops, tmp_path):
    code = os.fork()
    if not code:
        drops.begin(tmp_path, "cats", adds=False).take("a.png", image())
        os._exit(0)
    os.waitpid(code, 0)
    assert len(entries(tmp_path)) == 1
    drop(drops, tmp_path, [("b.png", image())])
    assert names(tmp_path) == ["my_images/b.png"]


def test_an_archive_with_any_byte_changed_is_read_or_refused(drops, tmp_path):
    begun = drops.begin(tmp_path, "cats", adds=False)
    whole = archive([("a.txt", b"a"), ("b.txt", b"b")])
    for at in range(whole.index(b"PK\1\2"), len(whole)):
        for value in (0, 255):
            try:
                begun.take("a.zip", whole[:at] + bytes([value]) + whole[at + 1 :])
            except Exception as error:  # noqa: BLE001 - what is raised is looked at
                assert "a.zip" in error.found, (at, value)  # noqa: PT017
    begun.take("good.png", image())
    assert drops.finish(begun.token)[0] == "cats"


def test_adding_follows_no_link_out_of_the_folder(drops, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "input" / "cats").mkdir(parents=True)
    (tmp_path / "input" / "cats" / "sub").symlink_to(outside)
    files = [("a.png", image()), ("sub/b.png", image("blue"))]
    with pytest.raises(Exception, match="link that leads out"):
        drop(drops, tmp_path / "input", files, "cats", adds=True)
    assert entries(outside) == []
    assert entries(tmp_path / "input" / "cats") == ["sub"]


def test_the_browser_sends_what_is_read_and_what_it_is_told_of():
    script = (Path(__file__).parents[3] / "js" / "dataset" / "files.js").read_text()
    kinds = {
        "IMAGES": IMAGE_EXTENSIONS,
        "CLIPS": (CLIP_EXTENSIONS | {".gif"}) - {FRAME_FOLDER},
        "FOREIGN": FOREIGN_EXTENSIONS - {".gif"},
    }
    for name, known in kinds.items():
        sent = re.compile(re.search(rf"const {name} = /(.+)/i;", script)[1], re.IGNORECASE)
        assert [each for each in sorted(known) if not sent.search(f"a{each}")] == []


def test_clips_are_taken_and_broken_ones_are_left_out(drops, tmp_path, dataset_upload):
    pytest.importorskip("av")
    whole = write_clip(tmp_path / "a.mp4").read_bytes()
    begun = drops.begin(tmp_path / "input", "clips", adds=False)
    assert begun.take("a.mp4", whole) == 1
    with pytest.raises(dataset_upload.DatasetError, match=r"b\.mp4 cannot be read as a clip"):
        begun.take("b.mp4", whole[: len(whole) // 3])
    begun.finish()
    assert names(tmp_path / "input") == ["clips/a.mp4"]
