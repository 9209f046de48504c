"""Clips for the tests; the interpreters of the tests and of ComfyUI import this."""

import numpy

RATE = 48000
"""Of sound."""


def add_tone(container, tone, seconds):
    """The sound of a clip: silence, then a tone in its second half."""
    import av

    stream = container.add_stream("aac", rate=RATE, layout="stereo")
    times = numpy.arange(round(seconds * RATE)) / RATE
    wave = 0.5 * numpy.sin(2 * numpy.pi * tone * times) * (times >= seconds / 2)
    for start in range(0, len(wave), 1024):
        piece = numpy.stack([wave[start : start + 1024]] * 2).astype(numpy.float32)
        frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="stereo")
        frame.sample_rate, frame.pts = RATE, start
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def write_clip(folder, side, frames, rate, name="0", caption="a red bar", tone=None):
    """A clip of a bar that moves, whose brightness changes, and its caption.

    Args:
        tone: Frequency of its sound in hertz, which begins in the middle; None for no sound, 0 for
            a silent one.
    """
    import av

    folder.mkdir(parents=True, exist_ok=True)
    with av.open(str(folder / f"{name}.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=round(rate))
        stream.width = stream.height = side
        stream.pix_fmt, stream.options = "yuv444p", {"crf": "0"}
        if tone is not None:
            add_tone(container, tone, frames / rate)
        for number in range(frames):
            pixels = numpy.full((side, side, 3), 40 + 160 * number // frames, numpy.uint8)
            pixels[:, number * side // frames :][:, : side // 4] = (200, 30, 30)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    (folder / f"{name}.txt").write_text(caption, encoding="utf-8")
