"""Reading clips: how large and long they are, and frames by their time, upright.

Frames are found by time, never by number: a clip may have a variable rate, an edit list that leaves
frames out, or a header that counts wrongly. Decoding starts at the key frame before the first
wanted one, which gives the same pixels as decoding from the start.

Source of the traps: PyAV 18.1 (FFmpeg 8), where ``frame.rotation`` tells of a rotation that is
not applied, ``stream.frames`` is 0 for Matroska, and a truncated Matroska file decodes without an
error.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ..errors import DatasetError
from ..filesystem.file_names import CLIP_EXTENSIONS, MOVING_EXTENSIONS
from ..types import ANY_CLIPS, ClipPart
from .frame_folders import frame_count, is_frame_folder, read_folder
from .image import on_white
from .image_decoders import BROKEN, opened_image, what_is_wrong
from .image_header import header_info

_HDR = {16: "PQ", 18: "HLG"}
"""Numbers of transfer curves in ISO/IEC 23091-4, to their names."""

_SOON = 2e-3
"""Seconds by which times may be off: Matroska rounds a frame's and the first one's to 1/1000."""

_MISSING = 0.5
"""Seconds of a clip that may be missing at its end before that is told."""

_SHORTEST_FRAME, _USUAL_FRAME = 10, 100
"""Milliseconds of an animated image's frame, as browsers read them."""

_MOST_PIXELS = 8192 * 8192
"""Of a frame; several are in memory at once."""

_CONTAINERS = {"format_whitelist": "avi,matroska,mov", "protocol_whitelist": "file"}
"""Others are refused: a playlist that is called a.mp4 would read files of any place."""


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What a clip holds.

    Attributes:
        duration: Seconds from the first frame to the end of the last one.
        missing: Seconds that its header promises and that are not there.
    """

    width: int
    height: int
    duration: float
    missing: float = 0.0

    def frames(self, rate: float) -> int:
        """How many frames it fills at so many per second."""
        return int((self.duration + _SOON) * rate)


def clip_facts(path: Path, rate: float = ANY_CLIPS.rate) -> ClipFacts:
    """Read how large and how long a clip is; one frame is decoded, all of a GIF or WebP.

    Raises:
        DatasetError: When it cannot be read, has no frames, or is HDR.
    """
    if is_frame_folder(path):
        count, width, height = frame_count(path)
        return ClipFacts(width, height, count / rate)
    if path.suffix.lower() in MOVING_EXTENSIONS:
        duration, size = 0.0, (0, 0)
        for frame, until in _moving(path):
            size = size if any(size) else frame().size
            duration = until
        return ClipFacts(*size, duration)
    first: Any = None
    end: float | None = None
    with opened_clip(path) as (container, stream):
        # Threads would read further before they give the first frame.
        stream.thread_type = "NONE"
        for packet in container.demux(stream):
            if first is None:
                first = next(iter(packet.decode()), None)
            # An edit list leaves frames out.
            if packet.pts is not None and not packet.is_discard:
                shown = packet.pts * float(stream.time_base) + _length(packet, stream)
                end = shown if end is None else max(end, shown)
        if first is None or end is None:
            raise _unreadable(path, "it holds no frame")
        curve = _HDR.get(int(stream.codec_context.color_trc or 0))
        if curve is not None:
            raise DatasetError(
                f"{path} is HDR ({curve})",
                "a clip of standard range: its colours would be trained washed out",
                "Convert it to BT.709 with tone mapping, or remove it.",
            )
        width, height = _upright_size(first, stream)
        begin = _time(first, stream)
        missing = _promised(container, stream) - (end - min(begin, 0.0))
    if end <= begin:
        raise _unreadable(path, "its frames have no times")
    return ClipFacts(width, height, end - begin, missing if missing > _MISSING else 0.0)


def read_frames(path: Path, part: ClipPart) -> Iterator[Image.Image]:
    """Decode the frames of a part: at each of its times the frame that is shown then.

    Yields:
        Upright RGB images in square pixels; the same one again where the clip has fewer frames.

    Raises:
        DatasetError: When the clip cannot be decoded that far.
    """
    if is_frame_folder(path):
        yield from read_folder(path, part)
        return
    wanted = [part.start + number / part.rate for number in range(part.frames)]
    yielded = 0
    moving = path.suffix.lower() in MOVING_EXTENSIONS
    for frame, until in _moving(path) if moving else _decoded(path, wanted[0]):
        image: Image.Image | None = None
        while yielded < len(wanted) and wanted[yielded] < until - _SOON:
            image = image or frame()
            yield image
            yielded += 1
        if yielded == len(wanted):
            return
    raise _unreadable(path, f"only {yielded} of {len(wanted)} frames could be decoded")


def _decoded(path: Path, start: float) -> Iterator[tuple[Callable[[], Image.Image], float]]:
    """What makes the upright frames, as `_shown` gives them."""
    with opened_clip(path) as (container, stream):
        stream.thread_type = "AUTO"
        for frame, until in _shown(container, stream, start):
            yield functools.partial(_upright, frame, stream), until


def _moving(path: Path) -> Iterator[tuple[Callable[[], Image.Image], float]]:
    """What makes the frames of a GIF or WebP from its start, before the next; as `_shown`.

    Source of the traps: browsers show frames of 10 ms and less for 100 ms; Pillow knows how long a
    frame of a WebP is shown when that is decoded.
    """
    until = 0.0
    with opened_image(path) as image:
        _require_plausible(*image.size)
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            image.load()
            length = float(image.info.get("duration") or 0)
            until += (length if length > _SHORTEST_FRAME else _USUAL_FRAME) / 1000
            yield functools.partial(_plain, image), until


def _plain(image: Image.Image) -> Image.Image:
    return on_white(image).convert("RGB")


def _shown(container: Any, stream: Any, start: float) -> Iterator[tuple[Any, float]]:
    """Frames from the one that is shown at a time on, each with when the next one is shown.

    Times are seconds from the first frame. The last one is shown as long as it says.
    """
    before = next(container.decode(stream), None)
    if before is None:
        return
    origin = _time(before, stream)
    if start > 0:
        container.seek(int((origin + start) / float(stream.time_base)), stream=stream)
        before = next(container.decode(stream), None)
    if before is None or _time(before, stream) - origin > start + _SOON:
        return  # the file's index is wrong
    for frame in container.decode(stream):
        yield before, _time(frame, stream) - origin
        before = frame
    yield before, _time(before, stream) - origin + _length(before, stream)


@contextlib.contextmanager
def opened_clip(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a clip and its stream of frames; an error while it is used is one of the dataset."""
    av = _av()
    try:
        # FFmpeg takes a name such as "http:a" for an address, unless a path is absolute.
        with av.open(
            str(path.absolute()), container_options=_CONTAINERS, metadata_errors="replace"
        ) as container:
            if not container.streams.video:
                raise _unreadable(path, "it has no frames, only sound")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise _unreadable(path, "its codec is none that FFmpeg knows")
            _require_plausible(stream.codec_context.width, stream.codec_context.height)
            yield container, stream
    except (*BROKEN, MemoryError, av.FFmpegError) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise _unreadable(path, words) from error


def first_time(container: Any, stream: Any) -> float:
    """When the first frame is shown, in seconds of the file; it is decoded."""
    first = next(container.decode(stream), None)
    if first is None:
        raise ValueError("it holds no frame")
    return _time(first, stream)


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise DatasetError(
            "clips in the dataset, and PyAV is not installed",
            "PyAV, which reads them; ComfyUI requires it",
            'Install it: pip install "adapter-trainer[video]".',
        ) from error
    return av


def _time(frame: Any, stream: Any) -> float:
    if frame.pts is None:
        raise ValueError("its frames have no times")
    return float(frame.pts * stream.time_base)


def _length(shown: Any, stream: Any) -> float:
    """Seconds that a frame, or the packet that holds it, is shown."""
    if shown.duration:
        return float(shown.duration * stream.time_base)
    return 1.0 / float(stream.guessed_rate or stream.average_rate or 1)


def _promised(container: Any, stream: Any) -> float:
    """Seconds that the header of a clip promises; 0 where it says nothing."""
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return float(container.duration or 0) / 1e6


def _upright_size(frame: Any, stream: Any) -> tuple[int, int]:
    aspect = stream.sample_aspect_ratio
    width, height = frame.width, frame.height
    if aspect and aspect != 1:
        width = max(1, round(width * float(aspect)))
    _require_plausible(width, height)
    return (height, width) if frame.rotation % 180 else (width, height)


def _require_plausible(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        raise ValueError(f"it claims an implausible size of {width} x {height} pixels")


def _upright(frame: Any, stream: Any) -> Image.Image:
    size = _upright_size(frame, stream)
    image: Image.Image = frame.to_image()
    if frame.rotation:
        image = image.rotate(frame.rotation, expand=True)
    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def _unreadable(path: Path, reason: str) -> DatasetError:
    return DatasetError(
        what_is_wrong(path, reason, "a clip"),
        "a whole clip that FFmpeg decodes, such as an MP4 of H.264",
        "Export it again, remove it from the dataset, or set dataset.unreadable: skip.",
    )


def is_clip(path: Path) -> bool:
    """Whether a file has frames that follow each other: a WebP or GIF may have one alone.

    Raises:
        DatasetError: When the header of such an image cannot be read.
    """
    ending = path.suffix.lower()
    moves = ending in MOVING_EXTENSIONS and path.is_file()
    return ending in CLIP_EXTENSIONS or (moves and header_info(path).animated)


def cut_clip(facts: ClipFacts, lengths: Sequence[int], rate: float, most: int) -> list[ClipPart]:
    """Cut a clip into equal parts that do not overlap; none where it is too short for the shortest.

    Args:
        lengths: Numbers of frames that the base can train, at least one; the largest that the clip
            fills is taken.
        most: Parts at the most, from the clip's start.
    """
    frames = facts.frames(rate)
    length = max((each for each in lengths if each <= frames), default=0)
    if not length:
        return []
    count = min(frames // length, most)
    return [ClipPart(number * length / rate, length, rate) for number in range(count)]
