"""How many tokens captions have, and how many of them are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...printable import listed
from ...types import Sample

_NAMED = 5
# What templates and end tokens add, and no more.
_AROUND = 32

CountTokens = Callable[[str, int], int]
"""A caption and its number of control images to the tokens that count against the limit."""


@dataclass(frozen=True, slots=True)
class TextLimit:
    """How long a caption may be before its end is cut off."""

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
    """Say which captions are cut off, in one note or none.

    Args:
        setting: ``base.text_length`` as it is set, or None.
    """
    long = {name: count for name, count in tokens.items() if count > limit}
    if not long:
        return ()
    named = listed([f"{name} ({count})" for name, count in long.items()], _NAMED)
    own = "" if setting else ", the default"
    return (
        f"{len(long)} caption(s) have more tokens than base.text_length ({limit}{own}), and what "
        f"is behind is not read: {named}. Shorten them, or raise "
        "base.text_length.",
    )
