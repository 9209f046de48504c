"""Captions are edited in their files, over what was read and nothing else, and taken back."""

import json
import threading

import pytest
from PIL import Image

TXT = ".txt"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "cats"
    (folder / "in").mkdir(parents=True)
    for name in ("a.png", "in/b.png", "e\u0301.png"):
        Image.new("RGB", (8, 8)).save(folder / name)
    (folder / "a.txt").write_text("one\r\n", encoding="utf-8-sig")
    return folder


@pytest.fixture
def edits(caption_edits, folder, tmp_path):
    return caption_edits.Edits(folder, tmp_path / "journals")


def token(caption_edits, allowed, image):
    return caption_edits.caption_at(image, TXT, allowed([image.parent])).token


def edit(caption_edits, allowed, edits, image, text):
    return edits.save(image, TXT, text, token(caption_edits, allowed, image))


def test_edits_are_saved_and_taken_back_one_after_another(
    caption_edits, allowed, edits, folder, tmp_path
):
    image, other = folder / "a.png", folder / "in" / "b.png"
    edit(caption_edits, allowed, edits, image, "two\r\nlines ")
    edit(caption_edits, allowed, edits, image, "three")
    edit(caption_edits, allowed, edits, other, "new")
    assert (folder / "a.txt").read_bytes() == b"three\n"
    assert (folder / "in" / "b.txt").read_bytes() == b"new\n"
    # Another server, after a reload.
    again = caption_edits.Edits(folder, tmp_path / "journals")
    assert again.count() == 3
    assert [each.as_posix() for each in again.undo()] == ["in/b.txt"]
    assert not (folder / "in" / "b.txt").exists()
    assert [each.as_posix() for each in again.undo()] == ["a.txt"]
    assert (folder / "a.txt").read_text() == "two\nlines\n"
    again.undo()
    assert (folder / "a.txt").read_text() == "one\n"
    assert again.undo() == []
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "a.txt", "e\u0301.png", "in"]


def test_what_another_program_wrote_stays(caption_edits, allowed, edits, folder):
    image = folder / "a.png"
    read = token(caption_edits, allowed, image)
    (folder / "a.txt").write_text("theirs")
    with pytest.raises(Exception, match="changed by another program"):
        edits.save(image, TXT, "mine", read)
    assert (folder / "a.txt").read_text() == "theirs"
    edit(caption_edits, allowed, edits, image, "mine")
    edit(caption_edits, allowed, edits, image, "mine too")
    (folder / "a.txt").write_text("theirs again")
    with pytest.raises(Exception, match="changed by another program"):
        edits.undo()
    assert (folder / "a.txt").read_text() == "theirs again"
    assert edits.count() == 1


def test_of_two_writers_one_is_told(caption_edits, allowed, edits, folder, errors):
    image = folder / "a.png"
    read, told = token(caption_edits, allowed, image), []

    def write(text):
        try:
            edits.save(image, TXT, text, read)
        except errors.InputError as error:
            told.append(error)

    threads = [threading.Thread(target=write, args=(f"text {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(told), edits.count()) == (3, 1)


def test_a_kill_between_journal_and_file_loses_nothing(
    caption_edits, allowed, edits, folder, monkeypatch
):
    image = folder / "a.png"
    edit(caption_edits, allowed, edits, image, "two")

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(caption_edits, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            edit(caption_edits, allowed, edits, image, "three")
    assert (folder / "a.txt").read_text() == "two\n"
    edits.undo()
    assert (folder / "a.txt").read_text() == "one\n"


def test_links_are_neither_read_nor_written(caption_edits, allowed, edits, folder, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to(secret)
    (folder / "out").symlink_to(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    for image in (folder / "a.png", folder / "out" / "x.png"):
        with pytest.raises(Exception, match="link"):
            caption_edits.caption_at(image, TXT, allowed([folder])) and edits.save(
                image, TXT, "x", caption_edits.ABSENT
            )
    assert secret.read_text() == "secret"
    assert not (tmp_path / "x.txt").exists()


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "x" * (2**20 + 1)])
def test_what_is_no_caption_is_refused(caption_edits, edits, folder, text):
    with pytest.raises(Exception, match="caption"):
        edits.save(folder / "in" / "b.png", TXT, text, caption_edits.ABSENT)


def test_the_file_is_found_as_the_trainer_finds_it(caption_edits, allowed, folder):
    (folder / "é.TXT").write_text("accent")
    found = caption_edits.caption_at(folder / "e\u0301.png", TXT, allowed([folder]))
    assert (found.text, found.file.name) == ("accent", "é.TXT")
    (folder / "in" / "b.caption").write_text("beside")
    (folder / "in" / "b.json").write_text('"json"')
    found = caption_edits.caption_at(folder / "in" / "b.png", TXT, allowed([folder]))
    assert (found.text, found.file.name) == ("beside", "b.caption")


def test_choices_for_images_are_taken_back_among_captions(caption_edits, allowed, edits, folder):
    image, other = folder / "a.png", folder / "in" / "b.png"
    choices = folder / ".adapter_trainer.json"
    edits.choose(image, {"left_out": True})
    edit(caption_edits, allowed, edits, other, "new")
    edits.choose(other, {"focus": [0.25, 0.5]})
    edits.choose(other, {"focus": [0.25, 0.5]})
    kept = choices.read_text()
    assert edits.count() == 3
    assert [each.as_posix() for each in edits.undo()] == ["in/b.png"]
    assert json.loads(choices.read_text()) == {"left_out": ["a.png"], "focus": {}}
    edits.choose(other, {"focus": [0.25, 0.5]})
    assert choices.read_text() == kept
    taken = [edits.undo()[0].as_posix() for _ in range(3)]
    assert (taken, choices.exists()) == (["in/b.png", "in/b.txt", "a.png"], False)
    # What another program wrote since stays.
    edits.choose(image, {"left_out": True})
    choices.write_text("{}")
    with pytest.raises(Exception, match="changed by another program"):
        edits.undo()
    choices.write_text(" " * (1 << 20) + "{}")
    edits.choose(image, {"left_out": True})
    assert (edits.count(), "a.png" in choices.read_text()) == (0, True)


def test_a_journal_of_a_stranger_reaches_nothing(caption_edits, edits, folder, tmp_path):
    (tmp_path / "journals").mkdir()
    (tmp_path / "outside.txt").write_text("x")
    entry = '{"file": "../outside.txt", "before": null, "after": "x"}'
    edits._journal.write_text(f'{{"edits": [{entry}, 3, {{}}, {{"file": 1}}]}}')
    assert edits.count() == 0
    assert edits.undo() == []
    assert (tmp_path / "outside.txt").exists()


def captions(folder):
    return {path.name: path.read_text() for path in sorted(folder.rglob("*.txt"))}


@pytest.mark.parametrize(
    ("way", "text", "find", "wanted"),
    [
        ("fill", "ohwx", "", ["one\r\n", "ohwx\n", "ohwx\n"]),
        ("all", "ohwx", "", ["ohwx\n"] * 3),
        ("replace", "two $& \\1", "one", ["two $& \\1\n", None, None]),
        ("replace", "", "one", ["\n", None, None]),
        ("replace", "x", "One", ["one\r\n", None, None]),
        ("front", "ohwx", "", ["ohwx, one\n", "ohwx\n", "ohwx\n"]),
        ("front", "one", "", ["one\r\n", "one\n", "one\n"]),
        ("remove", "", "one", ["\n", None, None]),
        ("remove", "", "on", ["one\r\n", None, None]),
    ],
)
def test_all_captions_are_changed_and_taken_back_at_once(
    caption_edits, edits, folder, way, text, find, wanted
):
    before = captions(folder)
    names = ("a.png", "in/b.png", "e\u0301.png")
    change = caption_edits.change_of(way, text, find)
    count = sum(text not in {"one\r\n", None} for text in wanted)
    assert edits.save_all([folder / name for name in names], TXT, change) == (count, 0)
    written = [(folder / name).with_suffix(TXT) for name in names]
    found = [path.read_bytes().decode("utf-8-sig") if path.exists() else None for path in written]
    assert found == wanted
    assert edits.count() == (count > 0)
    assert len(edits.undo()) == count
    assert {name: text.strip("\ufeff") for name, text in before.items()} == {
        name: text.strip("\ufeff") for name, text in captions(folder).items()
    }
