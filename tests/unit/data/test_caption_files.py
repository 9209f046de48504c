"""Captions in text and JSON files, and several of them for one image."""

import pytest

from tests.fixtures.bad_input import write_image
from tests.fixtures.scanned_folder import settings
from tests.fixtures.tables import table
from trainer_core.data.sources.caption_files import caption_texts_of_json
from trainer_core.data.sources.scan_folder import scan
from trainer_core.errors import DatasetError


@pytest.mark.parametrize(("value", "both", "long", "short"), table(__file__, "json_captions"))
def test_json_captions_in_every_spelling(value, both, long, short):
    assert list(caption_texts_of_json(value, "both")) == both
    assert list(caption_texts_of_json(value, "long")) == long
    assert list(caption_texts_of_json(value, "short")) == short


@pytest.mark.parametrize("value", [3, None, [1], {"caption": 5}, True])
def test_what_is_no_text_is_refused(value):
    with pytest.raises((ValueError, KeyError)):
        caption_texts_of_json(value, "both")


def texts(tmp_path, **options):
    return [each.captions for each in scan(settings(tmp_path, **options)).samples]


@pytest.mark.parametrize("name", ["a.png.txt", "a.PNG.txt", "a.jpg.txt", "a.txt.txt", "a.tif.TXT"])
def test_a_caption_that_keeps_another_ending_is_the_images(tmp_path, name):
    write_image(tmp_path / "a.png")
    (tmp_path / name).write_text("a red house")
    found = scan(settings(tmp_path))
    assert [each.captions for each in found.samples] == [("a red house",)]
    assert name in found.problems[0]
    (tmp_path / "a.txt").write_text("its own")
    found = scan(settings(tmp_path))
    assert [each.captions for each in found.samples] == [("its own",)]
    assert f"not read, because the image has another: {name}" in found.problems[0]


@pytest.mark.parametrize(
    ("name", "images"), [("a.b.txt", ["a.png"]), ("a.png.txt", ["a.png", "a.jpg"])]
)
def test_a_caption_that_may_be_of_several_images_or_none_is_of_none(tmp_path, name, images):
    for image in images:
        write_image(tmp_path / image)
    (tmp_path / name).write_text("a red house")
    with pytest.raises(DatasetError, match=rf"{name} has no image of the same name"):
        scan(settings(tmp_path, missing_caption="empty"))


MARKED = '{"image": "a.png", "caption": "\ufeffa %s"}\n'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"a red\0 diamond", "letter 6 is NUL"),
        ("a.txt", "a red".encode("utf-16-le"), "letter 2 is NUL"),
        ("a.txt", "a red".encode("utf-16") + b"!", "not UTF-16 text"),
        ("a.txt", b"it\x92s", "not UTF-8 text: invalid start byte at byte 2"),
        ("a.json", b'"a\\u0000"', "letter 2 is NUL"),
        ("metadata.jsonl", (MARKED % r"\u0000").encode(), "letter 4 is NUL"),
        ("metadata.csv", b"image,caption\na.png,a\0", "NUL"),
    ],
)
def test_a_caption_that_no_encoder_can_read_is_refused_by_name(tmp_path, name, content, said):
    write_image(tmp_path / "a.png")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=said) as refused:
        texts(tmp_path, caption_extension=f".{name.rpartition('.')[2]}")
    assert name in refused.value.found
