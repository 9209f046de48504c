"""The sound of a clip, of the part that is trained."""

import numpy as np
import pytest
from comfyui.clip_files import RATE, write_clip

from trainer_core.data.sounds import has_sound, read_sound
from trainer_core.errors import DatasetError
from trainer_core.types import ClipPart

av = pytest.importorskip("av")

FPS, FRAMES, TONE = 16.0, 64, 1000


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Four seconds; a tone begins after two."""
    folder = tmp_path_factory.mktemp("sounds")
    write_clip(folder, 32, FRAMES, FPS, tone=TONE)
    return folder / "0.mp4"


def begin_of(sound):
    """When a sound is first heard, in seconds."""
    loud = np.flatnonzero(np.abs(sound.waveform.numpy()).max(0) > 0.25)
    return loud[0] / sound.rate


@pytest.mark.parametrize("start", [0.0, 1.0, 1.75])
def test_a_tone_begins_where_it_does_in_the_clip(clip, start):
    sound = read_sound(clip, ClipPart(start, 33, FPS))
    assert sound.rate == RATE
    assert sound.waveform.shape == (2, round((33 / FPS + 0.2) * RATE))
    assert begin_of(sound) == pytest.approx(2 - start, abs=0.005)


def test_a_silent_part_is_no_sound(clip, tmp_path):
    assert has_sound(clip, ClipPart(1.0, 33, FPS))
    assert not has_sound(clip, ClipPart(0.0, 16, FPS))
    for name, tone in (("mute", None), ("silent", 0)):
        write_clip(tmp_path, 32, 16, FPS, name, tone=tone)
        assert not has_sound(tmp_path / f"{name}.mp4", ClipPart(0.0, 16, FPS))
    assert not has_sound(tmp_path / "a.webp", ClipPart(0.0, 16, FPS))


def write_tracks(path, *waves):
    """A clip of a second with a track of each level."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=16)
        video.width = video.height = 32
        tracks = [container.add_stream("flac", rate=RATE, layout="stereo") for _ in waves]
        for _ in range(16):
            container.mux(video.encode(av.VideoFrame(32, 32, "rgb24")))
        container.mux(video.encode())
        for track, level in zip(tracks, waves, strict=True):
            frame = av.AudioFrame.from_ndarray(
                np.full((1, 2 * RATE), level, np.int16), format="s16", layout="stereo"
            )
            frame.sample_rate, frame.pts = RATE, 0
            container.mux(track.encode(frame))
            container.mux(track.encode())


def test_a_codec_that_nobody_knows_is_no_sound(tmp_path):
    path = tmp_path / "a.mkv"
    write_tracks(path, 4000)
    path.write_bytes(path.read_bytes().replace(b"A_FLAC", b"A_XLAC"))
    assert not has_sound(path, ClipPart(0.0, 16, 16.0))


def test_of_a_damaged_sound_the_message_names_the_sound(clip, tmp_path):
    with av.open(str(clip)) as container:
        places = [(each.pos, each.size) for each in container.demux(audio=0) if each.size]
    content, path = bytearray(clip.read_bytes()), tmp_path / "a.mp4"
    for place, size in places[60:64]:
        content[place : place + size] = b"\xff" * size
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"the sound of .*a.mp4 .*\n.*\n.*without its sound"):
        has_sound(path, ClipPart(1.0, 33, FPS))
