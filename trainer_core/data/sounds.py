"""Reading the sound of clips: the part that belongs to the frames that are trained.

Times are those of `clips`: seconds from the clip's first frame, with which a sound may begin later
or earlier. Where a clip has no sound, it is silent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import DatasetError
from ..filesystem.file_names import MOVING_EXTENSIONS
from ..types import ClipPart, Sound
from .clips import first_time, opened_clip
from .frame_folders import is_frame_folder
from .image_decoders import BROKEN

_SILENT = 1e-4
"""The loudest number of a sound that counts as silence: -80 dB, below what 16 bits dither to."""

_BEFORE = 0.25
"""Seconds that are decoded before the part: codecs begin with what is not whole."""

_AFTER = 0.2
"""Seconds behind the part that are read as well: a spectrum of its end looks so far ahead."""


def has_sound(path: Path, part: ClipPart) -> bool:
    """Whether a part of a clip has a sound that can be heard.

    Raises:
        DatasetError: When the clip cannot be read.
    """
    return _heard_track(path, part) is not None


def read_sound(path: Path, part: ClipPart) -> Sound:
    """Decode the sound of a part: of several tracks the first one that can be heard.

    Channels become two: a single one is doubled, more are mixed.

    Args:
        part: Of a clip that has a sound (`has_sound`).

    Returns:
        The part and a fifth of a second behind it, silent where the file has nothing.

    Raises:
        DatasetError: When the clip cannot be read.
    """
    seconds = part.seconds + _AFTER
    waveform, rate = torch.zeros(2, 0), 0
    for place, piece, rate in _pieces(path, _heard_track(path, part) or 0, part.start, seconds):
        if not waveform.shape[1]:
            waveform = torch.zeros(2, round(seconds * rate))
        waveform[:, place : place + piece.shape[1]] = torch.from_numpy(piece)
    return Sound(waveform, rate)


def _heard_track(path: Path, part: ClipPart) -> int | None:
    """The first track that can be heard in a part; None without one."""
    if is_frame_folder(path) or path.suffix.lower() in MOVING_EXTENSIONS:
        return None
    with opened_clip(path) as (container, _):
        count = len(container.streams.audio)
    for number in range(count):
        pieces = _pieces(path, number, part.start, part.seconds)
        if any(bool((np.abs(piece) > _SILENT).any()) for _, piece, _ in pieces):
            return number
    return None


def _pieces(
    path: Path, number: int, start: float, seconds: float
) -> Iterator[tuple[int, Any, int]]:
    """Pieces `[2, n]` of a track that lie in a part, with their place in it, and the rate."""
    with opened_clip(path) as (container, stream):
        begin = first_time(container, stream) + start
        track = container.streams.audio[number]
        if track.codec_context is None:
            return  # a codec that FFmpeg does not know
        with _named_sound(path):
            rate = track.codec_context.sample_rate
            end = round(seconds * rate)
            container.seek(int(max(0.0, begin - _BEFORE) / float(track.time_base)), stream=track)
            converted = _Converted(rate)
            for frame in container.decode(track):
                if frame.pts is None:
                    continue
                place = round((float(frame.pts * frame.time_base) - begin) * rate)
                if place >= end:
                    return
                for whole in converted(frame):
                    piece = whole[:, max(0, -place) : end - place]
                    if piece.shape[1]:
                        yield max(0, place), piece, rate
                    place += whole.shape[1]


@contextlib.contextmanager
def _named_sound(path: Path) -> Iterator[None]:
    """Name the sound where it is damaged: the frames of its clip may be whole."""
    from av.error import FFmpegError

    try:
        yield
    except (*BROKEN, FFmpegError) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DatasetError(
            f"the sound of {path} cannot be decoded ({words})",
            "a clip whose sound FFmpeg decodes, or one without sound",
            "Export the clip again, or without its sound (ffmpeg -i IN -c copy -an OUT), remove it "
            "from the dataset, or set dataset.unreadable: skip, which leaves the whole clip out.",
        ) from error


class _Converted:
    """Frames of a track in two channels of float32, whatever each of them is."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._kind: tuple[str, str, int] | None = None
        self._resampler: Any = None

    def __call__(self, frame: Any) -> Iterator[Any]:
        """`[2, n]` in [-1, 1] of a frame."""
        import av

        kind = frame.format.name, frame.layout.name, frame.sample_rate
        if kind != self._kind:
            # A broadcast goes from two channels to six and back.
            layout = "mono" if frame.layout.nb_channels == 1 else "stereo"
            self._resampler = av.AudioResampler(format="fltp", layout=layout, rate=self._rate)
            self._kind = kind
        for plain in self._resampler.resample(frame):
            channels = plain.to_ndarray().clip(-1, 1)
            yield np.repeat(channels, 2, axis=0) if len(channels) == 1 else channels
