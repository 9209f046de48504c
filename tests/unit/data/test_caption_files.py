"""Captions in text and JSON files, and several of them for one image."""

import pytest

from tests.fixtures.bad_input import write_image
from tests.fixtures.scanned_folder import settings
from tests.fixtures.tables import table
from trainer_core.data.sources.caption_files import caption_texts_of_json
from trainer_core.data.sources.folder import scan
from trainer_core.errors import DatasetError


@pytest.mark.parametrize(
    ("value", "both", "long", "short"),
    table(__file__, "json_captions"),
)
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


@pytest.mark.parametrize("extension", [".txt", ".caption", ".json"])
def test_a_caption_of_another_extension_is_read_and_told(tmp_path, extension):
    write_image(tmp_path / "a.png")
    (tmp_path / f"a{extension}").write_text('"hello"' if extension == ".json" else "hello")
    asked = ".caption" if extension == ".txt" else ".txt"
    found = scan(settings(tmp_path, caption_extension=asked))
    assert found.samples[0].caption == "hello"
    assert f"a{extension}" in found.problems[0]
    own = scan(settings(tmp_path, caption_extension=extension))
    assert (own.samples[0].caption, own.problems) == ("hello", ())


def test_several_caption_files_of_one_image_are_told(tmp_path):
    write_image(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.caption").write_text("caption")
    (tmp_path / "a.json").write_text('"json"')
    found = scan(settings(tmp_path))
    assert found.samples[0].caption == "text"
    assert "a.caption (read: a.txt), a.json (read: a.txt)" in found.problems[0]
    found = scan(settings(tmp_path, caption_extension=".json"))
    assert found.samples[0].caption == "json"


def test_a_json_file_of_something_else_is_no_caption_unless_it_is_asked_for(tmp_path):
    write_image(tmp_path / "a.png")
    (tmp_path / "a.json").write_text('{"source": "somewhere"}')
    assert texts(tmp_path, missing_caption="empty") == [("",)]
    with pytest.raises(DatasetError, match=r"a\.json cannot be read as a caption.*source"):
        texts(tmp_path, caption_extension=".json", missing_caption="empty")
