"""Captions: the text files beside the pictures."""

from __future__ import annotations

from pathlib import Path

from ..errors import DatasetError


def read_caption(path: Path) -> str:
    """Read a caption file.

    Args:
        path: A UTF-8 text file, with or without a byte-order mark.

    Returns:
        The text without blanks at its ends; line breaks inside stay.

    Raises:
        DatasetError: When the file is not UTF-8 or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start})",
            "a caption in UTF-8",
            "Save the file as UTF-8 in a text editor.",
        ) from error
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read ({error.strerror})",
            "a readable caption file",
            "Give read access to the file, or remove it.",
        ) from error


def with_trigger(trigger_word: str, caption: str) -> str:
    """Put the trigger word in front of a caption, unless it stands there already."""
    trigger = trigger_word.strip()
    if not trigger or caption == trigger or caption.startswith(f"{trigger},"):
        return caption
    return f"{trigger}, {caption}" if caption else trigger
