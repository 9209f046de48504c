"""What the caption file of an image says: one text, or several.

Plain text is one caption. JSON is a text, a list of texts, or an object that holds them under one
of the names that other trainers and captioning tools write; a short and a long text may stand side
by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ...config import DatasetSection
from ...errors import DatasetError
from ...filesystem.text_files import parse_json, read_text
from .folder_problems import EXPECTED_CAPTION, Problems
from .list_files import ListedFile, Listing

LARGEST_CAPTION = 2**20
"""Bytes of a caption; text encoders read some hundred words."""

LONG_NAMES = ("long", "caption_long", "long_caption", "caption", "text", "prompt", "description")
SHORT_NAMES = ("short", "caption_short", "short_caption")
LIST_NAMES = ("captions", "texts", "prompts")


def texts_beside(
    listing: Listing, key: str, problems: Problems
) -> tuple[ListedFile | None, tuple[str, ...]]:
    """The caption file of an image, and its texts as `caption_of` gives them."""
    own = _caption_file(listing, key, problems)
    if own is None:
        return None, ()
    asked_for = listing.captions.get(key) is own
    # No path: making one takes longer than opening the file.
    place = f"{listing.folder}/{own.name}"
    return own, caption_of(place, own.extension, problems.settings, asked_for=asked_for)


def _caption_file(listing: Listing, key: str, problems: Problems) -> ListedFile | None:
    """Choose the caption file of an image.

    Args:
        problems: Told where there are several, and where it is not of the extension that is set.

    Returns:
        The file of the extension that is set, else the first of ``.txt``, ``.caption`` and
        ``.json``; None where there is none, or none is to be read.
    """
    own = listing.captions.get(key)
    if not problems.settings.captions.read_files:
        if own is not None:
            words = "{count} caption file(s) are not read (dataset.captions.read_files): {names}"
            problems.count(words, own.shown)
        return None
    if not listing.other_captions:
        return own
    others = listing.other_captions.get(key, [])
    if own is None:
        if not others:
            return None
        own, *others = others
        words = "{count} image(s) have no caption file of their name and extension: {names} read"
        problems.count(words, own.shown)
    for other in others:
        words = "{count} caption file(s) are not read, because the image has another: {names}"
        problems.count(words, f"{other.shown} (read: {own.shown})")
    return own


def stated_caption(settings: DatasetSection, key: str) -> tuple[str, ...]:
    """The caption of an image that has none of its own, by ``dataset``; none where it says none.

    Args:
        key: The image's name, without extension.
    """
    if settings.captions.default.strip():
        return (settings.captions.default,)
    return (key.rpartition("/")[2],) if settings.missing_caption == "filename" else ()


def caption_of(
    path: Path | str, extension: str, settings: DatasetSection, *, asked_for: bool = True
) -> tuple[str, ...]:
    """Read a caption file: its texts without outer blanks and without empty ones.

    Args:
        settings: Of its folder, of which ``captions.length`` counts.
        asked_for: Whether the extension is the one that is set; a JSON file that was found instead
            and holds no caption is then none.

    Raises:
        DatasetError: When it cannot be read, or is JSON without a caption.
    """
    text = read_caption(path)
    if extension != ".json":
        return (text,) if text else ()
    try:
        return caption_texts_of_json(parse_json(text or '""'), settings.captions.length)
    except KeyError as error:
        if not asked_for:
            return ()
        raise _unreadable(path, str(error.args[0])) from error
    except ValueError as error:
        raise _unreadable(path, str(error)) from error


def read_caption(path: Path | str) -> str:
    """Read a caption file, without marks of byte order and without blanks at its ends.

    Line breaks inside stay.

    Raises:
        DatasetError: As `read_text`, and when it is too large for a caption, or holds a NUL.
    """
    text = read_text(path, lambda reason: _unreadable(path, reason), LARGEST_CAPTION)
    if broken := broken_letter(text):
        raise _unreadable(path, broken)
    return without_marks(text).strip()


def without_marks(text: str) -> str:
    """A text without marks of byte order, which programs leave in front and between lines."""
    return text.replace("\ufeff", "")


def broken_letter(text: str) -> str:
    """What is wrong with a text that a file can spell and no text encoder can read; or nothing."""
    if "\0" in text:
        return f"letter {text.index(chr(0)) + 1} is NUL, which no text can have"
    if text.isascii():
        return ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        return f"letter {error.start + 1} is half of one, \\u{code:04x}, which no text can have"
    return ""


def caption_texts_of_json(value: Any, length: Literal["both", "long", "short"]) -> tuple[str, ...]:
    """The texts that a JSON value holds.

    Args:
        value: A text, a list of texts or of objects, or an object.
        length: Which of a long and a short text are taken. Where there is only one of them, that
            one is.

    Raises:
        KeyError: When an object has none of the known names.
        ValueError: When something else than a text is where one should be.
    """
    found = dict.fromkeys(without_marks(text).strip() for text in _texts(value, length))
    return tuple(text for text in found if text)


def _texts(value: Any, length: str) -> Iterator[str]:
    if isinstance(value, str):
        if broken := broken_letter(value):
            raise ValueError(f"a caption's {broken}")
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, length)
    elif isinstance(value, Mapping):
        yield from _texts_of_object(value, length)
    else:
        raise ValueError(f"a caption is {str(value)[:80]!r}, which is not text")


def _texts_of_object(value: Mapping[str, Any], length: str) -> Iterator[str]:
    for name in LIST_NAMES:
        if isinstance(value.get(name), list | Mapping):
            yield from _texts(value[name], length)
            return
    long, short = _first(value, LONG_NAMES), _first(value, SHORT_NAMES)
    if long is None and short is None:
        names = ", ".join(map(str, list(value)[:4])) or "nothing"
        raise KeyError(f"its names are {names[:80]}, and none is caption, text, short or long")
    if length == "long" and long is not None:
        short = None
    if length == "short" and short is not None:
        long = None
    for part in (long, short):
        if part is not None:
            yield from _texts(part, length)


def _first(value: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _unreadable(path: Path | str, reason: str) -> DatasetError:
    return DatasetError(f"{path} cannot be read as a caption ({reason})", *EXPECTED_CAPTION)
