"""Reading the sound of clips: the part that belongs to the frames that are trained.

Times are those of `clips`: seconds from the clip's first frame, with which a sound may begin later
or earlier. Where a clip has no sound, it is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..filesystem.file_names import MOVING_EXTENSIONS
from ..types import ClipPart, Sound
from .clips import first_time, opened_clip
from .frame_folders import is_frame_folder

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
    if is_frame_folder(path) or path.suffix.lower() in MOVING_EXTENSIONS:
        return False
    pieces = _pieces(path, part.start, part.seconds)
    return any(bool((np.abs(piece) > _SILENT).any()) for _, piece, _ in pieces)


def read_sound(path: Path, part: ClipPart) -> Sound:
    """Decode the sound of a part; more channels than two are mixed to two, a single one is doubled.

    Args:
        part: Of a clip that has a sound (`has_sound`).

    Returns:
        The part and a fifth of a second behind it, silent where the file has nothing.

    Raises:
        DatasetError: When the clip cannot be read.
    """
    seconds = part.seconds + _AFTER
    waveform, rate = torch.zeros(2, 0), 0
    for place, piece, rate in _pieces(path, part.start, seconds):
        if not waveform.shape[1]:
            waveform = torch.zeros(2, round(seconds * rate))
        end = place + piece.shape[1]
        waveform[:, place:end] = torch.from_numpy(piece)
    return Sound(waveform, rate)


def _pieces(path: Path, start: float, seconds: float) -> Iterator[tuple[int, Any, int]]:
    """Pieces `[2, n]` that lie in a part, with their place in it, and the rate."""
    with opened_clip(path) as (container, stream):
        tracks = container.streams.audio
        begin = first_time(container, stream) + start
        if not tracks:
            return
        track = tracks[0]
        container.seek(int(max(0.0, begin - _BEFORE) / float(track.time_base)), stream=track)
        resampler = _two_channels(track.codec_context.sample_rate)
        for frame in container.decode(track):
            if frame.pts is None:
                continue
            rate = frame.sample_rate
            place = round((float(frame.pts * frame.time_base) - begin) * rate)
            end = round(seconds * rate)
            if place >= end:
                return
            for plain in resampler.resample(frame):
                piece = plain.to_ndarray()[:, max(0, -place) : end - place]
                if piece.shape[1]:
                    yield max(0, place), piece, rate
                place += plain.samples


def _two_channels(rate: int) -> Any:
    import av

    return av.AudioResampler(format="fltp", layout="stereo", rate=rate)
