"""Captions: the text files beside the images, how long they may be, and when one is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...counters import counter_seed
from ...errors import DatasetError
from ...filesystem.text_files import read_text
from ...types import Sample

LARGEST_CAPTION = 2**20
"""Bytes of a caption; text encoders read some hundred words."""

READABLE = (
    "a readable text file in UTF-8, or in UTF-16 with its mark",
    "Save it as UTF-8 in a text editor, give read access to it, or remove it.",
)
"""What is expected of a caption that cannot be read, and what is to do."""

_NAMED = 5
# What templates and end tokens add, and no more.
_AROUND = 32

PLACEHOLDERS = ("[trigger]", "[name]")
"""What stands for the trigger word in captions that were written for ai-toolkit."""

# Chinese, Japanese and Korean are written without blanks between words.
_LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"

CountTokens = Callable[[str, int], int]
"""A caption and its number of control images to the tokens that count against the limit."""


@dataclass(frozen=True, slots=True)
class TextLimit:
    """How long a caption may be before its end is cut off.

    Attributes:
        count: Counts a caption's tokens.
        tokens: The most that are read.
    """

    count: CountTokens
    tokens: int


def caption_tokens(samples: Iterable[Sample], count: CountTokens) -> dict[str, int]:
    """Count the tokens of captions: a sample's name to their number in the longest of its texts."""
    return {
        sample.name: max(count(text, len(sample.controls)) for text in sample.captions)
        for sample in samples
    }


def may_be_long(samples: Iterable[Sample], tokens: int) -> list[Sample]:
    """The samples whose captions can have more tokens than some; a token has a byte at least."""
    return [
        sample
        for sample in samples
        if any(len(text.encode()) + _AROUND > tokens for text in sample.captions)
    ]


def long_caption_notes(tokens: dict[str, int], limit: int, setting: int | None) -> Sequence[str]:
    """Say which captions are cut off.

    Args:
        tokens: What `caption_tokens` gave.
        limit: The most tokens that are read.
        setting: ``base.text_length`` as it is set, or None.

    Returns:
        One note, or none.
    """
    long = {name: count for name, count in tokens.items() if count > limit}
    if not long:
        return ()
    named = [f"{name} ({count})" for name, count in list(long.items())[:_NAMED]]
    more = f" and {len(long) - _NAMED} more" if len(long) > _NAMED else ""
    own = "" if setting else ", the default"
    return (
        f"{len(long)} caption(s) have more tokens than base.text_length ({limit}{own}), and what "
        f"is behind is not read: {', '.join(named)}{more}. Shorten them, or raise "
        "base.text_length.",
    )


def read_caption(path: Path | str) -> str:
    """Read a caption file, without marks of byte order and without blanks at its ends.

    Line breaks inside stay.

    Raises:
        DatasetError: As `read_text`, and when it is too large for a caption, or holds a NUL.
    """

    def refuse(reason: str) -> DatasetError:
        return DatasetError(f"{path} cannot be read as a caption ({reason})", *READABLE)

    text = read_text(path, refuse, LARGEST_CAPTION)
    if broken := broken_letter(text):
        raise refuse(broken)
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


def with_trigger(trigger_word: str, caption: str, *, add: bool = True) -> str:
    """Put the trigger word into a caption: for `PLACEHOLDERS`, else in front, unless it has it.

    Args:
        trigger_word: As it is set; empty: the caption stays as it is.
        add: As ``dataset.captions.add_trigger``.
    """
    trigger = trigger_word.strip()
    if not trigger:
        return caption
    caption = without_placeholders(trigger, caption)
    if not add or has_word(caption, trigger):
        return caption
    return f"{trigger}, {caption}" if caption else trigger


def without_placeholders(trigger_word: str, caption: str) -> str:
    """Put the trigger word, where there is one, in the place of `PLACEHOLDERS`."""
    trigger = trigger_word.strip()
    for placeholder in PLACEHOLDERS if trigger else ():
        caption = caption.replace(placeholder, trigger)
    return caption


def has_word(text: str, word: str) -> bool:
    """Whether a text has a word or several as a whole, in any case of the letters."""
    return word.lower() in text.lower() and re.search(_whole(word), text, re.IGNORECASE) is not None


def _whole(word: str) -> str:
    return rf"(?<!{_LETTER}){re.escape(word)}(?!{_LETTER})"


def with_class_word(caption: str, trigger_word: str, class_word: str) -> str:
    """Put a class word in the place of the trigger word, wherever a caption has it.

    Args:
        caption: As it is trained, with the trigger word in front or anywhere in it.
        trigger_word: Replaced as a whole word, in any case of its letters; a class word that
            follows it already, as in "a photo of TRIGGER woman", is not written twice.
    """
    word = re.escape(class_word.strip())
    whole = rf"{_whole(trigger_word.strip())}(?:\s+{word}(?!{_LETTER}))?"
    return re.sub(whole, lambda _: class_word.strip(), caption, flags=re.IGNORECASE)


def drops_caption(probability: float, seed: int, step: int, position: int) -> bool:
    """Whether a sample of a step is trained with an empty caption.

    Args:
        probability: ``dataset.caption_dropout``, 0 to 1.
        step: Optimizer step, from 1.
        position: The sample's place in the step.
    """
    return counter_seed(seed, "caption_dropout", step, position) < probability * 2.0**63
