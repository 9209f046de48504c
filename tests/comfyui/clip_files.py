"""Clips for the tests; the interpreters of the tests and of ComfyUI import this."""

import av
import numpy


def write_clip(folder, side, frames, rate, name="0", caption="a red bar"):
    """A clip of a bar that moves, whose brightness changes, and its caption."""
    folder.mkdir(parents=True, exist_ok=True)
    with av.open(str(folder / f"{name}.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=round(rate))
        stream.width = stream.height = side
        stream.pix_fmt, stream.options = "yuv444p", {"crf": "0"}
        for number in range(frames):
            pixels = numpy.full((side, side, 3), 40 + 160 * number // frames, numpy.uint8)
            pixels[:, number * side // frames :][:, : side // 4] = (200, 30, 30)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    (folder / f"{name}.txt").write_text(caption, encoding="utf-8")
