"""Clips that nodes made, kept as the dataset folder that the core reads."""

from __future__ import annotations

import hashlib
import inspect
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....trainer_core.errors import DatasetError
from ....trainer_core.filesystem.file_names import CLIP_EXTENSIONS
from ....trainer_core.filesystem.storage import move, storage_error
from ....trainer_core.filesystem.temporary import temporary_beside
from ...host.folders import clear_leftovers
from .image_folder import one_for_each

_QUALITY = 4.0
"""Constant rate factor of H.264 in which made or trimmed clips are kept: no loss that one sees."""


def write_video_folder(root: Path, videos: Sequence[Any], texts: Sequence[str]) -> Path:
    """Write ComfyUI's VIDEOs and their captions, or one for all, unless the same ones are there.

    Gives a folder below `root` that is named by its content. The file of a clip that is whole is
    copied; what is trimmed or made by nodes is encoded.

    Raises:
        DatasetError: When the numbers do not agree, or a clip cannot be read.
        StorageError: When it cannot be written.
    """
    captions = one_for_each(texts, "clips", len(videos))
    clear_leftovers(root)
    root.mkdir(parents=True, exist_ok=True)
    with temporary_beside(root / "clips") as temporary:
        try:
            temporary.mkdir()
            for index, (video, caption) in enumerate(zip(videos, captions, strict=True)):
                _write(video, temporary, f"{index:05d}")
                (temporary / f"{index:05d}.txt").write_text(caption, encoding="utf-8")
            target = root / _content_name(temporary)
            if not target.is_dir():
                move(temporary, target)
        except OSError as error:
            raise storage_error(root, error) from error
    return target


def _write(video: Any, folder: Path, name: str) -> None:
    source = video.get_stream_source()
    if isinstance(source, str) and not Path(source).is_file():
        raise _unwritable(name, f"{source} is not there any more")
    trimmed = any(getattr(video, "get_active_trim_window", lambda: (0.0, 0.0))())
    if isinstance(source, str) and not trimmed:
        ending = Path(source).suffix.lower()
        if ending in CLIP_EXTENSIONS:
            shutil.copyfile(source, folder / f"{name}{ending}")
            return
    # Older ComfyUI encodes at a quality of its own.
    known = inspect.signature(video.save_to).parameters
    quality = {"crf": _QUALITY} if "crf" in known else {}
    try:
        video.save_to(str(folder / f"{name}.mp4"), **quality)
    except OSError:
        raise
    except Exception as error:  # FFmpeg's have classes of their own
        raise _unwritable(name, str(error) or type(error).__name__) from error


def _unwritable(name: str, why: str) -> DatasetError:
    return DatasetError(
        f"clip {int(name)} cannot be written ({why})",
        "a VIDEO that Save Video can save",
        "Look for the node that made it, or disconnect it.",
    )


def _content_name(folder: Path) -> str:
    from ....trainer_core.data.file_memory import hash_file

    content = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        content.update(f"{path.name} {hash_file(path)}\n".encode())
    return content.hexdigest()[:24]
