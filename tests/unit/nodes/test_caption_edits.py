"""Captions are edited in their files, over what was read and nothing else, and taken back."""

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
    return caption_edits.read(image, TXT, allowed([image.parent])).token


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
    assert again.undo().as_posix() == "in/b.txt"
    assert not (folder / "in" / "b.txt").exists()
    assert again.undo().as_posix() == "a.txt"
    assert (folder / "a.txt").read_text() == "two\nlines\n"
    again.undo()
    assert (folder / "a.txt").read_text() == "one\n"
    assert again.undo() is None
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
            caption_edits.read(image, TXT, allowed([folder])) and edits.save(
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
    found = caption_edits.read(folder / "e\u0301.png", TXT, allowed([folder]))
    assert (found.text, found.file.name) == ("accent", "é.TXT")


def test_a_journal_of_a_stranger_reaches_nothing(caption_edits, edits, folder, tmp_path):
    (tmp_path / "journals").mkdir()
    (tmp_path / "outside.txt").write_text("x")
    entry = '{"file": "../outside.txt", "before": null, "after": "x"}'
    edits._journal.write_text(f'{{"edits": [{entry}, 3, {{}}, {{"file": 1}}]}}')
    assert edits.count() == 0
    assert edits.undo() is None
    assert (tmp_path / "outside.txt").exists()


def test_the_journal_of_long_captions_stays_readable(
    caption_edits, allowed, edits, folder, monkeypatch
):
    monkeypatch.setattr(caption_edits, "_KEPT_TEXT", 100)
    for letter in "abcdef":
        edit(caption_edits, allowed, edits, folder / "a.png", letter * 30)
    assert edits.count() == 1
    edits.undo()
    assert (folder / "a.txt").read_text() == "e" * 30 + "\n"


def test_a_byte_order_mark_in_a_text_is_no_change_by_another_program(
    caption_edits, allowed, edits, folder
):
    saved = edit(caption_edits, allowed, edits, folder / "a.png", "\ufefftwo")
    assert token(caption_edits, allowed, folder / "a.png") == saved.token
    assert edits.undo().name == "a.txt"
