"""The sound of a clip, of the part that is trained."""

import numpy as np
import pytest
from comfyui.clip_files import RATE, write_clip

from trainer_core.data.sounds import has_sound, read_sound
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


def test_a_tone_has_its_frequency_and_ends_with_the_file(clip):
    sound = read_sound(clip, ClipPart(3.0, 32, FPS))
    own = sound.waveform[0, : RATE // 2].numpy()
    spectrum = np.abs(np.fft.rfft(own * np.hanning(len(own))))
    assert spectrum.argmax() * RATE / len(own) == pytest.approx(TONE, abs=2)
    assert not sound.waveform[:, round(1.1 * RATE) :].any()


def test_a_silent_part_is_no_sound(clip, tmp_path):
    assert has_sound(clip, ClipPart(1.0, 33, FPS))
    assert not has_sound(clip, ClipPart(0.0, 16, FPS))
    for name, tone in (("mute", None), ("silent", 0)):
        write_clip(tmp_path, 32, 16, FPS, name, tone=tone)
        assert not has_sound(tmp_path / f"{name}.mp4", ClipPart(0.0, 16, FPS))
    assert not has_sound(tmp_path / "a.webp", ClipPart(0.0, 16, FPS))


@pytest.mark.parametrize(("layout", "channels"), [("mono", 1), ("5.1", 6)])
def test_other_channels_become_two(tmp_path, layout, channels):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=16)
        video.width = video.height = 32
        audio = container.add_stream("flac", rate=RATE, layout=layout)
        for _ in range(16):
            container.mux(video.encode(av.VideoFrame(32, 32, "rgb24")))
        container.mux(video.encode())
        wave = np.full((1, channels * RATE), 8000, np.int16)
        frame = av.AudioFrame.from_ndarray(wave, format="s16", layout=layout)
        frame.sample_rate, frame.pts = RATE, 0
        container.mux(audio.encode(frame))
        container.mux(audio.encode())
    sound = read_sound(path, ClipPart(0.0, 16, 16.0))
    left, right = sound.waveform[:, 1000 : RATE - 1000]
    assert left.std() < 1e-4
    assert left.allclose(right)
    if channels == 1:
        assert left.mean() == pytest.approx(8000 / 2**15, abs=1e-4)
    assert 0.1 < left.mean() <= 1


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
