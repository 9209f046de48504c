"""Captions: the text files beside the pictures."""

from __future__ import annotations

from pathlib import Path

from ..errors import DatasetError
from ..text_files import read_text

LARGEST_CAPTION = 2**20
"""Bytes of a caption; text encoders read some hundred words."""


def read_caption(path: Path) -> str:
    """Read a caption file.

    Args:
        path: A UTF-8 text file, with or without a byte-order mark.

    Returns:
        The text without blanks at its ends; line breaks inside stay.

    Raises:
        DatasetError: When the file is not UTF-8, too large for a caption, or cannot be read.
    """

    def refuse(reason: str) -> DatasetError:
        return DatasetError(
            f"{path} cannot be read as a caption ({reason})",
            "a readable text file in UTF-8",
            "Save it as UTF-8 in a text editor, give read access to it, or remove it.",
        )

    return read_text(path, refuse, LARGEST_CAPTION).strip()


def with_trigger(trigger_word: str, caption: str) -> str:
    """Put the trigger word in front of a caption, unless it stands there already."""
    trigger = trigger_word.strip()
    if not trigger or caption == trigger or caption.startswith(f"{trigger},"):
        return caption
    return f"{trigger}, {caption}" if caption else trigger
