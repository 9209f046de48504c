"""What is remembered of images, so that an unchanged folder is not opened file by file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from ..clips import ClipFacts, clip_facts
from ..frame_folders import is_frame_folder
from ..image_header import header_info
from ..image import ImageInfo


class HeaderMemory(Protocol):
    """A memory of what images' headers say, by the files' stamps."""

    def facts_of(self, path: Path, status: os.stat_result) -> ImageInfo | None:
        """What is remembered of a file with this size, these times and this inode.

        Returns:
            What its header said, or None where it has to be read.
        """
        ...

    def remember(self, path: Path, status: os.stat_result, facts: ImageInfo) -> None:
        """Keep what a header says."""
        ...

    def clip_of(self, path: Path, status: os.stat_result) -> ClipFacts | None:
        """As `facts_of`, of a clip."""
        ...

    def remember_clip(self, path: Path, status: os.stat_result, facts: ClipFacts) -> None:
        """Keep what a clip holds."""
        ...


def read_facts(path: Path, remembered: HeaderMemory | None = None) -> ImageInfo:
    """What an image's header says.

    Args:
        remembered: Asked first, and told what was read.

    Raises:
        DatasetError: As `image_info`.
    """
    if remembered is None:
        return header_info(path)
    try:
        status = path.stat()
    except OSError:
        return header_info(path)
    found = remembered.facts_of(path, status)
    if found is None:
        found = header_info(path)
        remembered.remember(path, status, found)
    return found


def read_clip_facts(path: Path, rate: float, remembered: HeaderMemory | None = None) -> ClipFacts:
    """What a clip holds, as `read_facts` gives that of an image.

    Args:
        rate: As for `clip_facts`.
        remembered: As for `read_facts`; asked for files alone.

    Raises:
        DatasetError: As `clip_facts`.
    """
    try:
        status = None if remembered is None or is_frame_folder(path) else path.stat()
    except OSError:
        status = None
    if remembered is None or status is None:
        return clip_facts(path, rate)
    found = remembered.clip_of(path, status)
    if found is None:
        found = clip_facts(path, rate)
        remembered.remember_clip(path, status, found)
    return found
