"""Clips are read by time, upright and whole, or refused in words."""

import numpy as np
import pytest
from PIL import Image

from tests.fixtures.clip_files import RATE, write_clip
from trainer_core.data.clips import ClipFacts, clip_facts, cut_clip, read_frames
from trainer_core.errors import DatasetError
from trainer_core.types import ClipPart, FrameGrid

av = pytest.importorskip("av")

FRAMES = 60
VARIABLE = np.cumsum([0.0, *np.random.default_rng(0).choice([0.02, 0.04, 0.1], FRAMES - 1)])


def decoded(path):
    """All frames from the start, one after the other, and when they are shown."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    begin = frames[0].time
    return [(each.time - begin, each.to_ndarray(format="rgb24")) for each in frames]


CLIPS = {
    "constant": ("a.mp4", {}),
    "key frames far apart": ("a.mp4", {"options": {"g": "250", "bf": "3"}}),
    "variable": ("a.mkv", {"times": VARIABLE}),
    "webm": ("a.webm", {"codec": "libvpx-vp9"}),
    "odd width": ("a.mp4", {"size": (63, 47), "pixels": "yuv444p"}),
    "10 bit": ("a.mov", {"pixels": "yuv420p10le"}),
    "avi": ("a.avi", {"codec": "mpeg4"}),
}


@pytest.mark.parametrize(("name", "options"), CLIPS.values(), ids=CLIPS)
def test_frames_are_those_of_decoding_from_the_start(tmp_path, name, options):
    path = write_clip(tmp_path / name, **options)
    facts, whole = clip_facts(path), decoded(path)
    assert (facts.width, facts.height) == options.get("size", (64, 48))
    assert facts.duration == pytest.approx(whole[-1][0] + 1 / RATE, abs=0.03)
    assert facts.missing == 0
    for start in (0.0, 0.7, 1.3):
        part = ClipPart(start, 17, 16.0)
        for number, image in enumerate(read_frames(path, part)):
            wanted = start + number / 16 + 2e-3
            shown = [pixels for time, pixels in whole if time <= wanted][-1]
            assert np.array_equal(np.asarray(image), shown), (start, number)
        assert number == 16


@pytest.mark.parametrize("bframes", [0, 3])
@pytest.mark.parametrize(("first", "count"), [(7, 53), (0, 40), (30, 20)])
def test_an_edit_list_is_obeyed(tmp_path, bframes, first, count):
    path = write_clip(tmp_path / "a.mp4", options={"g": "12", "bf": str(bframes)})
    whole = [pixels for _, pixels in decoded(path)]
    content = bytearray(path.read_bytes())
    places = {name: content.index(name) + 16 for name in (b"mvhd", b"mdhd")}
    ticks = {name: int.from_bytes(content[at : at + 4], "big") for name, at in places.items()}
    # ISO/IEC 14496-12, 8.6.6: how long, in the movie's ticks; from where, in the track's.
    place = content.index(b"elst") + 12
    begin = int.from_bytes(content[place + 4 : place + 8], "big")
    for offset, value in (
        (0, round(count / RATE * ticks[b"mvhd"])),
        (4, begin + round(first / RATE * ticks[b"mdhd"])),
    ):
        content[place + offset : place + offset + 4] = value.to_bytes(4, "big")
    path.write_bytes(content)
    shown = decoded(path)
    assert len(shown) == count
    assert all(map(np.array_equal, (pixels for _, pixels in shown), whole[first:]))
    facts = clip_facts(path)
    assert facts.duration == pytest.approx(count / RATE, abs=2e-3)
    assert facts.missing == 0
    for start in (0, 5, count - 9):
        for number, image in enumerate(read_frames(path, ClipPart(start / RATE, 9, RATE))):
            assert np.array_equal(np.asarray(image), shown[start + number][1]), (start, number)


@pytest.mark.parametrize("name", ["a.gif", "a.webp"])
def test_frames_of_an_animated_image_are_shown_as_a_browser_shows_them(tmp_path, name):
    lengths, path = [60, 10, 250, 120], tmp_path / name
    webp = name.endswith("webp")
    # Pillow writes no GIF whose last frame is clear.
    last = (0, 0, 0, 0) if webp else (255, 255, 255, 255)
    colors = [(200, 30, 30, 255), (30, 200, 30, 255), (30, 30, 200, 255), last]
    first, *rest = (Image.new("RGBA", (20, 14), color) for color in colors)
    options = {"lossless": True} if webp else {}
    first.save(path, save_all=True, append_images=rest, duration=lengths, loop=0, **options)
    facts = clip_facts(path)
    # 10 ms are shown as 100 ms; what is clear is white.
    assert (facts.width, facts.height, facts.duration) == (20, 14, pytest.approx(0.53))
    ends = np.cumsum([60, 100, 250, 120]) / 1000
    shown = [*(color[:3] for color in colors[:3]), (255, 255, 255)]
    read = list(read_frames(path, ClipPart(0.05, 16, 40.0)))
    times = 0.05 + np.arange(16) / 40
    wanted = [shown[int(np.searchsorted(ends, time, side="right"))] for time in times]
    assert [each.getpixel((3, 3)) for each in read] == wanted


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.mov"])
@pytest.mark.parametrize("rate", [16, 24, 25, 30])
def test_a_clip_of_the_trained_rate_is_trained_frame_by_frame(tmp_path, name, rate):
    times = [number / rate for number in range(33)]
    path = write_clip(tmp_path / name, 33, codec="mpeg4", rate=rate, times=times)
    (part,) = cut_clip(clip_facts(path), [17, 33], float(rate), 16)
    assert part.frames == 33
    read = [np.asarray(each) for each in read_frames(path, part)]
    assert all(
        np.array_equal(*pair) for pair in zip(read, [p for _, p in decoded(path)], strict=True)
    )


def test_a_rotated_clip_is_upright(tmp_path, rotated_clip):
    path, upright = rotated_clip
    facts = clip_facts(path)
    assert (facts.width, facts.height) == upright.shape[1::-1]
    (image,) = read_frames(path, ClipPart(0.0, 1, 24.0))
    assert np.abs(np.asarray(image).astype(int) - upright).mean() < 3


@pytest.fixture(params=[90, 180, 270])
def rotated_clip(request, tmp_path):
    """A clip that a player turns, and how its first frame looks then."""
    path = write_clip(tmp_path / "flat.mp4", options={"crf": "0"}, pixels="yuv444p")
    turns = request.param // 90
    content = bytearray(path.read_bytes())
    # The matrix of the track's header: ISO/IEC 14496-12, 8.3.2.
    place = content.index(b"tkhd") + 4 + 40
    matrix = {1: (0, 1, -1, 0), 2: (-1, 0, 0, -1), 3: (0, -1, 1, 0)}[turns]
    for offset, value in zip((0, 4, 12, 16), matrix, strict=True):
        content[place + offset : place + offset + 4] = (value << 16).to_bytes(4, "big", signed=True)
    turned = tmp_path / "turned.mp4"
    turned.write_bytes(content)
    return turned, np.rot90(decoded(path)[0][1], -turns)


def test_sound_alone_is_refused(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    with pytest.raises(DatasetError, match="only sound"):
        clip_facts(path)


def test_hdr_is_refused(tmp_path):
    path = write_clip(
        tmp_path / "a.mp4", pixels="yuv420p10le", options={"x264-params": "transfer=smpte2084"}
    )
    with pytest.raises(DatasetError, match=r"HDR \(PQ\)"):
        clip_facts(path)


@pytest.mark.parametrize("rate", [16.0, 24.0, 29.97])
def test_a_folder_of_frames_is_read_in_order_of_its_numbers(tmp_path, rate):
    folder = tmp_path / "a.frames"
    folder.mkdir()
    for number in range(40):
        Image.new("RGB", (8, 6), (number, 0, 0)).save(folder / f"f{number}.png")
    (folder / "notes.txt").write_text("x")
    facts = clip_facts(folder, rate)
    assert (facts.width, facts.height, facts.frames(rate)) == (8, 6, 40)
    parts = cut_clip(facts, [13], rate, 16)
    read = [image.getpixel((0, 0))[0] for part in parts for image in read_frames(folder, part)]
    assert read == list(range(39))
    (folder / "f3.png").unlink()
    with pytest.raises(DatasetError, match="holds 12 of the 13 frames from 27 on"):
        list(read_frames(folder, ClipPart(27 / rate, 13, rate)))


@pytest.mark.parametrize(
    ("seconds", "most", "clips", "starts", "frames"),
    [
        (5.0, 33, 16, [0.0, 33 / 16], 33),
        (5.0, 33, 1, [0.0], 33),
        (1.0, 33, 16, [0.0], 13),
        (5 / 16, 33, 16, [0.0], 5),
        (4 / 16, 33, 16, [], 0),
        (5.0, 40, 16, [0.0, 37 / 16], 37),
    ],
)
def test_a_clip_is_cut_into_equal_parts(seconds, most, clips, starts, frames):
    parts = cut_clip(ClipFacts(64, 48, seconds), FrameGrid(4, 16.0).lengths(most), 16.0, clips)
    assert [each.start for each in parts] == starts
    assert {each.frames for each in parts} <= {frames}


def test_a_cycle_begins_with_a_single_frame():
    """MiniMax-H3's, as its makers count: 17k + 5 frames are 5k + 2 of the latents."""
    grid = FrameGrid(4, 24.0, 5)
    assert grid.lengths(124) == [17 * k + 5 for k in range(8)]
    assert [grid.latent_frames(each) for each in grid.lengths(124)] == [*range(2, 38, 5)]
    assert [grid.span(place) for place in range(7)] == [1, 4, 4, 4, 4, 1, 4]
    assert [grid.latent_frames(each) for each in (1, 4, 5, 21, 22)] == [1, 1, 2, 2, 7]


@pytest.mark.parametrize(("every", "cycle"), [(4, 0), (6, 0), (8, 0), (4, 5)])
def test_lengths_lie_on_the_grid(every, cycle):
    grid = FrameGrid(every, 24.0, cycle)
    lengths = grid.lengths(81)
    assert lengths[0] == every + 1
    assert max(lengths) <= 81
    for frames in lengths:
        assert grid.frames_of(grid.latent_frames(frames)) == frames
