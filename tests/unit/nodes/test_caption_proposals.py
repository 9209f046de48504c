"""What a captioner proposes finds its image by the look, and changes no file before it is taken."""

import json

import pytest
import torch
from PIL import Image, ImageDraw

TXT = ".txt"


@pytest.fixture
def folder(tmp_path):
    """Four images, two of them of one shape and brightness, and one there twice."""
    folder = tmp_path / "cats"
    (folder / "in").mkdir(parents=True)
    for name, at, color in (
        ("a.png", 8, "#c83c3c"),
        ("b.png", 8, "#3c7d3c"),
        ("in/c.jpg", 60, "#2020a0"),
        ("d.png", 90, "#ffffff"),
    ):
        image = Image.new("RGB", (160, 120), "#808080")
        ImageDraw.Draw(image).rectangle([at, 20, at + 50, 80], fill=color)
        image.save(folder / name)
    (folder / "in" / "twin.png").write_bytes((folder / "d.png").read_bytes())
    (folder / "b.txt").write_text("by hand")
    return folder


def loaded(*paths, size=None):
    """Images as a loader gives them to the graph: `[1, H, W, 3]` in [0, 1]."""
    images = [Image.open(path).convert("RGB") for path in paths]
    images = [image.resize(size) if size else image for image in images]
    frames = [torch.frombuffer(bytearray(each.tobytes()), dtype=torch.uint8) for each in images]
    sizes = [(each.height, each.width, 3) for each in images]
    return [f.reshape(1, *s).float() / 255 for f, s in zip(frames, sizes, strict=True)]


@pytest.mark.parametrize("size", [None, (80, 60)])
def test_texts_find_their_images_in_any_order_and_at_any_size(
    caption_proposals, folder, tmp_path, size
):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = ["d.png", "in/c.jpg", "b.png", "a.png"]
    texts = ["<img src=x>", "two\r\nlines", "green", " red "]
    images = loaded(*(folder / name for name in names), size=size)
    kept = tmp_path / "kept"
    told = caption_proposals.propose(folder, kept, images, texts, TXT)
    assert told.startswith("5 captions are proposed. Click")
    found = caption_proposals.Proposals(folder, kept).read()
    assert {name: each.text for name, each in found.items()} == {
        "a.png": "red",
        "b.png": "green",
        "in/c.jpg": "two\nlines",
        "d.png": "<img src=x>",
        "in/twin.png": "<img src=x>",
    }
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    caption_proposals.Proposals(folder, kept).write({})
    assert caption_proposals.Proposals(folder, kept).read() == {}


def test_what_is_of_no_image_of_the_folder_is_refused_or_counted(
    caption_proposals, errors, folder, tmp_path
):
    other = tmp_path / "other.png"
    image = Image.new("RGB", (160, 120), "#101010")
    ImageDraw.Draw(image).ellipse([20, 20, 150, 110], fill="#f0f0f0")
    image.save(other)
    kept, strange = tmp_path / "kept", loaded(other)[0]
    (own,) = loaded(folder / "a.png")
    for images, texts in (
        ([strange], ["a text"]),
        ([own], ["  "]),
        ([own, own], ["one"]),
        ([own], ["x" * 2**21]),
    ):
        with pytest.raises(errors.InputError):
            caption_proposals.propose(folder, kept, images, texts, TXT)
    assert caption_proposals.Proposals(folder, kept).read() == {}
    told = caption_proposals.propose(folder, kept, [torch.cat([strange, own])], ["x", "y"], TXT)
    assert told.startswith("1 captions are proposed. 1 more are of no image of it")


@pytest.mark.parametrize(
    ("before", "now", "becomes"),
    [
        (None, None, "new"),
        ("old", "old", "new"),
        ("", "", "new"),
        ("old", "theirs", "theirs"),
        (None, "theirs", "theirs"),
        ("old", None, "new"),
        # Somebody has emptied it.
        ("old", "", ""),
        (None, "", ""),
    ],
)
def test_a_caption_that_was_edited_or_emptied_since_stays(
    caption_proposals, caption_edits, tmp_path, before, now, becomes
):
    image = tmp_path / "a.png"
    then, own = (caption_edits.Caption(image.with_suffix(TXT), text) for text in (before, now))
    proposals = {"a.png": caption_proposals.Proposal("new", then.token)}
    assert caption_proposals.taken_proposals(tmp_path, proposals)(image, own) == becomes


def test_a_list_for_what_all_images_share_is_refused(caption_proposals, errors):
    assert caption_proposals.single_value("caption_extension", [".txt", ".txt"]) == ".txt"
    for values in ([], [".txt", ".caption"]):
        with pytest.raises(errors.InputError, match="values for caption_extension"):
            caption_proposals.single_value("caption_extension", values)


@pytest.mark.parametrize("content", ["", "[1]", '{"captions": 3}', '{"captions": [[1]]}'])
def test_a_damaged_file_proposes_nothing(caption_proposals, folder, tmp_path, content):
    proposals = caption_proposals.Proposals(folder, tmp_path)
    proposals._file.write_text(content)
    assert proposals.read() == {}
    proposals.write({"a.png": caption_proposals.Proposal("x", "y")})
    assert json.loads(proposals._file.read_text())["captions"] == [["a.png", "x", "y"]]
