"""Files of previews: an image is a PNG, a clip an animated WebP, which every browser plays.

Beside that lies an MP4, which every other program plays.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import StorageError

if TYPE_CHECKING:
    from PIL import Image

    from ..types import Sound

_IMAGE, _CLIP = ".png", ".webp"
_QUALITY = 90
"""Of WebP, up to 100: frames of a clip are looked at while they move."""
_MOVIE_QUALITY = "14"
"""Constant rate factor of H.264; below 18 no loss is seen."""
_AAC_FRAME = 1024


def preview_ending(frames: int) -> str:
    """Extension of the file of a preview of so many frames."""
    return _IMAGE if frames == 1 else _CLIP


def save_preview(frames: Sequence[Image.Image], target: Path, rate: float) -> None:
    """Write a preview.

    Args:
        frames: The image, or the frames of a clip.
        rate: Frames per second of a clip.
    """
    first, *others = frames
    if not others:
        first.save(target, format="PNG")
        return
    # Ends in whole milliseconds, so that rounding does not add up.
    ends = [round(1000 * number / rate) for number in range(len(frames) + 1)]
    durations = [end - begin for begin, end in itertools.pairwise(ends)]
    first.save(
        target,
        format="WEBP",
        save_all=True,
        append_images=others,
        duration=durations,
        loop=0,
        quality=_QUALITY,
    )


def can_save_movies() -> bool:
    """Whether PyAV, which writes them, is installed."""
    return importlib.util.find_spec("av") is not None


def save_movie(
    frames: Sequence[Image.Image], target: Path, rate: float, sound: Sound | None = None
) -> None:
    """Write a clip as MP4 (H.264), an odd last column or row cut off.

    Args:
        rate: Frames per second.
        sound: Is cut off where the frames end.

    Raises:
        OSError: When the disk does not take it.
        StorageError: When PyAV cannot encode it: some builds have no H.264.
    """
    import av

    width, height = (side - side % 2 for side in frames[0].size)
    try:
        with av.open(str(target), "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=Fraction(rate).limit_denominator(1001))
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.options = {"crf": _MOVIE_QUALITY}
            if sound is not None:
                _add_sound(container, sound, len(frames) / rate)
            for each in frames:
                pixels = each.convert("RGB").crop((0, 0, width, height))
                container.mux(stream.encode(av.VideoFrame.from_image(pixels)))
            container.mux(stream.encode())
    except OSError:
        raise
    except Exception as error:  # whatever a build of it raises: a preview ends no run
        raise StorageError(
            f"PyAV cannot write H.264 ({str(error) or type(error).__name__})",
            "a build of PyAV with libx264",
            "Install it again (pip install --force-reinstall av), or use the WebP.",
        ) from error


def _add_sound(container: Any, sound: Sound, seconds: float) -> None:
    import av

    waveform = sound.waveform[:, : round(seconds * sound.rate)].float().clamp(-1, 1).numpy()
    track = container.add_stream("aac", rate=sound.rate, layout="stereo")
    for start in range(0, waveform.shape[1], _AAC_FRAME):
        piece = np.ascontiguousarray(waveform[:, start : start + _AAC_FRAME])
        frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="stereo")
        frame.sample_rate, frame.pts = sound.rate, start
        container.mux(track.encode(frame))
    container.mux(track.encode())


def preview_files(folder: Path) -> list[Path]:
    """The previews in the folder of a step, by the number of their prompt."""
    found = [
        path
        for path in folder.iterdir()
        if path.suffix in {_IMAGE, _CLIP} and path.stem.isascii() and path.stem.isdigit()
    ]
    return sorted(found, key=lambda path: int(path.stem))
