"""What is not a sound clip is refused in words, soon, and never with another error."""

import contextlib
import os
import struct
import time

import numpy as np
import pytest

from tests.fixtures.clip_files import write_clip
from trainer_core.data.clips import clip_facts, cut_clip, read_frames
from trainer_core.errors import DatasetError
from trainer_core.types import ClipPart

pytest.importorskip("av")

LONGEST = 5.0
CODECS = {"mp4": "libx264", "mov": "mpeg4", "mkv": "libx264", "avi": "mpeg4", "webm": "libvpx-vp9"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Extension to the bytes of a clip of two seconds."""
    folder = tmp_path_factory.mktemp("sound")
    return {
        end: write_clip(folder / f"a.{end}", 48, codec=codec).read_bytes()
        for end, codec in CODECS.items()
    }


def read(path):
    """Read a clip as training does: parts, and all of their frames; how many parts."""
    began = time.monotonic()
    try:
        parts = cut_clip(clip_facts(path), [5, 17, 33], 16.0, 3)
        for part in parts:
            assert sum(1 for _ in read_frames(path, part)) == part.frames
        return len(parts)
    finally:
        assert time.monotonic() - began < LONGEST


def refused(path):
    with pytest.raises(DatasetError) as error:
        read(path)
    assert str(path) in error.value.found
    assert error.value.expected
    assert "dataset.unreadable: skip" in error.value.remedy
    return error.value.found


def replaced(content, mark, offset, value):
    """The bytes behind a mark, and so many further, replaced."""
    place = content.index(mark) + len(mark) + offset
    return content[:place] + value + content[place + len(value) :]


def counted(content):
    """A table that says that a million frames are a tick long."""
    return replaced(content, b"stts", 8, struct.pack(">I", 1_000_000))


# Extension; how its bytes are made of a sound clip's; what is said, or None where it is read.
KINDS = {
    "0 bytes": ("mp4", lambda content: b"", "is empty"),
    "one byte": ("mp4", lambda content: b"\0", "cannot be read as a clip"),
    "zeros": ("mp4", lambda content: bytes(4096), "cannot be read as a clip"),
    "text": ("mp4", lambda content: b"no clip", "cannot be read as a clip"),
    "a web page": ("mp4", lambda content: b"<!DOCTYPE html><html>", "a web page"),
    "Git LFS": ("mp4", lambda content: b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
    "a PNG": ("mp4", lambda content: b"\x89PNG\r\n\x1a\n" + bytes(99), "cannot be read as a clip"),
    "a GIF": ("mp4", lambda content: b"GIF89a" + bytes(99), "cannot be read as a clip"),
    "raw H.264": ("mp4", lambda content: b"\0\0\0\1\x67" + bytes(99), "cannot be read as a clip"),
    "another ending": ("mkv", lambda content: content, None),
    "a playlist": (
        "mp4",
        lambda content: b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:2,\nb.mp4\n#EXT-X-ENDLIST\n",
        "cannot be read as a clip",
    ),
    "a list of other files": (
        "mp4", lambda content: b"ffconcat version 1.0\nfile b.mp4\n", "cannot be read as a clip"
    ),
    "no index": ("mp4", lambda content: content.replace(b"moov", b"xxxx"), "cannot be read"),
    "no frames": ("mp4", lambda content: content.replace(b"stsz", b"free"), "cannot be read"),
    "no codec": ("mp4", lambda content: content.replace(b"avc1", b"zzzz"), "FFmpeg knows"),
    "a broken codec": ("mp4", lambda content: content.replace(b"avcC", b"free"), "cannot be read"),
    "a million frames": ("mp4", counted, None),
    "frames of no time": ("mp4", lambda content: replaced(content, b"stts", 12, bytes(4)), None),
    "frames of centuries": (
        "mp4", lambda content: replaced(content, b"stts", 12, b"\x7f\xff\xff\xff"), None
    ),
    "no ticks a second": ("mp4", lambda content: replaced(content, b"mdhd", 12, bytes(4)), None),
    "huge boxes": (
        "mp4", lambda content: replaced(content, b"stsz", 8, b"\xff" * 4), "cannot be read"
    ),
    "a huge frame of MPEG-4": (
        "avi", lambda content: replaced(content, b"strf", 8, struct.pack("<II", 20000, 20000)), None
    ),
    "latin letters in its title": (
        "titled.mp4", lambda content: content.replace(b"Caf\xc3\xa9", b"Caf\xe9\xe9"), None
    ),
}  # fmt: skip


@pytest.mark.parametrize(("end", "make", "words"), KINDS.values(), ids=KINDS)
def test_a_hostile_clip_is_read_or_refused_in_words(tmp_path, sound, end, make, words):
    (tmp_path / "b.mp4").write_bytes(sound["mp4"])
    path = tmp_path / ("a.mp4" if end == "mkv" else f"a.{end}")
    titled = end.startswith("titled")
    source = write_clip(path, 24, metadata={"title": "Caf\xe9"}).read_bytes() if titled else b""
    path.write_bytes(make(source or sound[end]))
    assert titled <= (path.read_bytes() != source)
    if words is None:
        read(path)
    else:
        assert words in refused(path)


WRITTEN = {
    "1 x 1 pixels": ("a.mkv", {"codec": "ffv1", "pixels": "bgr0", "size": (1, 1)}),
    "negative times": ("a.mkv", {"times": [(each - 12) / 24 for each in range(24)]}),
    "an hour between": ("a.mkv", {"times": [n / 24 + 3600 * (n > 12) for n in range(24)]}),
    "control characters": ("a\n\x1b[2J.mp4", {}),
    "an address": ("http:a.mp4", {}),
    "a protocol": ("concat:a.mp4|b.mp4", {}),
}


@pytest.mark.parametrize(("name", "options"), WRITTEN.values(), ids=WRITTEN)
def test_an_unusual_clip_is_read(tmp_path, monkeypatch, name, options):
    write_clip(tmp_path / "whole.mkv", 24, **options).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert read(type(tmp_path)(name)) == 3
    assert read(write_clip(tmp_path / "one_frame.mkv", 1)) == 0


@pytest.mark.parametrize(("side", "words"), [(16000, "16000 x 16000 pixels"), (20000, "")])
def test_a_frame_that_would_fill_the_memory_is_refused(tmp_path, side, words):
    path = write_clip(tmp_path / "a.avi", 24, codec="ffv1")
    path.write_bytes(replaced(path.read_bytes(), b"strf", 8, struct.pack("<II", side, side)))
    assert words in refused(path)


def spoil(content, seed):
    """Some bytes changed: at the start, at the end, or anywhere."""
    random, changed = np.random.default_rng(seed), bytearray(content)
    low, high = [(0, 600), (-1500, len(changed)), (0, len(changed))][seed % 3]
    for place in random.integers(
        low % len(changed), min(high, len(changed)), random.integers(1, 30)
    ):
        changed[place] = random.integers(256)
    return bytes(changed)


@pytest.mark.parametrize("end", CODECS)
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 400), marks=pytest.mark.exhaustive)], ids=len
)
def test_changed_bytes_never_raise_anything_else(tmp_path, sound, end, seeds):
    path = tmp_path / f"a.{end}"
    for seed in seeds:
        path.write_bytes(spoil(sound[end], seed))
        with contextlib.suppress(DatasetError):
            read(path)


def test_a_clip_that_vanishes_or_shrinks_while_it_is_read_is_refused(tmp_path, sound):
    path = tmp_path / "a.mp4"
    path.write_bytes(sound["mp4"])
    path.unlink()
    assert "does not exist" in refused(path)
    write_clip(path, 160, size=(640, 480), options={"g": "1", "crf": "1"})
    frames = read_frames(path, ClipPart(0.0, 97, 16.0))
    next(frames)
    os.truncate(path, 4096)
    with pytest.raises(DatasetError, match=r"a\.mp4 cannot be read as a clip"):
        list(frames)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="this user reads every file")
def test_a_clip_that_may_not_be_read_is_refused(tmp_path, sound):
    path = tmp_path / "a.mp4"
    path.write_bytes(sound["mp4"])
    path.chmod(0)
    assert "Permission denied" in refused(path)
