"""Reading clips: when each frame is shown, and frames by their time, upright.

Frames are found by time, never by number: a clip may have a variable rate, an edit list that leaves
frames out, or a header that counts wrongly. Decoding starts at the key frame before the first
wanted one, which gives the same pixels as decoding from the start.

Source of the traps: PyAV 18.1 (FFmpeg 8), where ``frame.rotation`` tells of a rotation that is
not applied, ``stream.frames`` is 0 for Matroska, and a truncated Matroska file decodes without an
error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..errors import DatasetError
from ..types import ClipPart

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HDR = {16: "PQ", 18: "HLG"}
"""Numbers of transfer curves in ISO/IEC 23091-4, to their names."""

_SOON = 1e-4
"""Seconds by which a frame's time may be rounded: time bases go down to 1/90000."""

_MISSING = 0.5
"""Seconds of a clip that may be missing at its end before that is told."""


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What a clip holds.

    Attributes:
        width: Of the upright frame in square pixels.
        height: As well.
        times: When each frame is shown, in seconds from the first one.
        duration: Seconds from the first frame to the end of the last one.
        missing: Seconds that its header promises and that are not there.
    """

    width: int
    height: int
    times: tuple[float, ...]
    duration: float
    missing: float = 0.0

    @property
    def rate(self) -> float:
        """Mean frames per second."""
        return len(self.times) / self.duration


def clip_facts(path: Path) -> ClipFacts:
    """Read when a clip's frames are shown; one frame is decoded.

    Raises:
        DatasetError: When it cannot be read, has no frames, or is HDR.
    """
    with _opened(path) as (container, stream):
        first = next(container.decode(stream), None)
        if first is None:
            raise _unreadable(path, "it holds no frame")
        curve = _HDR.get(int(stream.codec_context.color_trc or 0))
        if curve is not None:
            raise DatasetError(
                f"{path} is HDR ({curve})",
                "a clip of standard range: its colours would be trained washed out",
                "Convert it to BT.709 with tone mapping, or remove it.",
            )
        width, height = _upright_size(first, stream)
    times, ends = _shown_times(path)
    begin, end = times[0], max(ends)
    missing = _promised(path) - (end - min(begin, 0.0))
    return ClipFacts(
        width,
        height,
        tuple(each - begin for each in times),
        end - begin,
        missing if missing > _MISSING else 0.0,
    )


def read_frames(path: Path, part: ClipPart) -> Iterator[Image.Image]:
    """Decode the frames of a part: at each of its times the frame that is shown then.

    Yields:
        Upright RGB images in square pixels; the same one again where the clip has fewer frames.

    Raises:
        DatasetError: When the clip cannot be decoded that far.
    """
    wanted = [part.start + number / part.rate for number in range(part.frames)]
    yielded = 0
    with _opened(path) as (container, stream):
        base = float(stream.time_base)
        first = next(container.decode(stream), None)
        origin = 0.0 if first is None else first.pts * base
        container.seek(int((origin + wanted[0]) / base), stream=stream)
        shown: Any = None
        image: Image.Image | None = None
        for frame in container.decode(stream):
            time = frame.pts * base - origin
            while yielded < len(wanted) and shown is not None and wanted[yielded] < time - _SOON:
                image = image or _upright(shown, stream)
                yield image
                yielded += 1
            if yielded == len(wanted):
                return
            shown, image = frame, None
        # The last frame is shown as long as it says, and no longer.
        end = 0.0 if shown is None else shown.pts * base - origin + _length(shown, stream)
        while yielded < len(wanted) and shown is not None and wanted[yielded] < end - _SOON:
            image = image or _upright(shown, stream)
            yield image
            yielded += 1
    if yielded < len(wanted):
        raise _unreadable(path, f"only {yielded} of {len(wanted)} frames could be decoded")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    av = _av()
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise _unreadable(path, "it has no frames, only sound")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            yield container, stream
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise _unreadable(path, reason) from error


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise DatasetError(
            "clips in the dataset, and PyAV is not installed",
            "PyAV, which reads them; ComfyUI requires it",
            "Install it: pip install 'adapter-trainer[video]'.",
        ) from error
    return av


def _shown_times(path: Path) -> tuple[list[float], list[float]]:
    """When frames begin and end, in order, without those that an edit list leaves out."""
    times: list[float] = []
    ends: list[float] = []
    with _opened(path) as (container, stream):
        base = float(stream.time_base)
        for packet in container.demux(stream):
            if packet.pts is not None and not packet.is_discard:
                times.append(packet.pts * base)
                ends.append(times[-1] + _length(packet, stream))
    if not times:
        raise _unreadable(path, "it holds no frame")
    return sorted(times), ends


def _length(shown: Any, stream: Any) -> float:
    """Seconds that a frame, or the packet that holds it, is shown."""
    if shown.duration:
        return float(shown.duration * stream.time_base)
    return 1.0 / float(stream.guessed_rate or stream.average_rate or 1)


def _promised(path: Path) -> float:
    """Seconds that the header of a clip promises; 0 where it says nothing."""
    with _opened(path) as (container, stream):
        if stream.duration:
            return float(stream.duration * stream.time_base)
        return float(container.duration or 0) / 1e6


def _upright_size(frame: Any, stream: Any) -> tuple[int, int]:
    aspect = stream.sample_aspect_ratio
    width, height = frame.width, frame.height
    if aspect and aspect != 1:
        width = max(1, round(width * float(aspect)))
    return (height, width) if frame.rotation % 180 else (width, height)


def _upright(frame: Any, stream: Any) -> Image.Image:
    pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    turned = np.ascontiguousarray(np.rot90(pixels, frame.rotation // 90))
    image = Image.fromarray(turned)
    size = _upright_size(frame, stream)
    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def _unreadable(path: Path, reason: str) -> DatasetError:
    return DatasetError(
        f"{path} cannot be read as a clip ({reason})",
        "a whole clip that FFmpeg decodes, such as an MP4 of H.264",
        "Export it again, or remove it from the dataset.",
    )


def parts_of(facts: ClipFacts, lengths: Sequence[int], rate: float, most: int) -> list[ClipPart]:
    """Cut a clip into equal parts that do not overlap.

    Args:
        facts: The clip.
        lengths: Numbers of frames that the base can train, at least one; the largest that the clip
            fills is taken.
        rate: Frames per second that are trained.
        most: Parts at the most, from the clip's start.

    Returns:
        Its parts; none where it is shorter than the shortest length.
    """
    frames = int(facts.duration * rate + _SOON)
    length = max((each for each in lengths if each <= frames), default=0)
    if not length:
        return []
    count = min(frames // length, most)
    return [ClipPart(number * length / rate, length, rate) for number in range(count)]
