"""Which images are trained mirrored as well."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..config import DatasetSection
from ..printable import listed
from ..types import PlannedSample

_NAMED = 5


def with_flips(
    planned: Sequence[PlannedSample], settings: DatasetSection
) -> tuple[tuple[PlannedSample, ...], tuple[str, ...]]:
    """Choose what is trained mirrored: all that is trained, but where a text of it forbids it.

    Returns:
        The same samples in the same order, and what a person may want to know of it.
    """
    if not settings.flip:
        return tuple(planned), ()
    pattern = forbidden_words_pattern(settings.flip_except)
    chosen: list[PlannedSample] = []
    kept: dict[str, str] = {}
    trained = [each for each in planned if not each.sample.validation]
    for each in planned:
        if each.sample.validation:
            # It is measured as it is: mirrored it would be encoded for nothing.
            chosen.append(each)
            continue
        word = forbidding_word(each.sample.captions, pattern)
        if word is not None:
            kept[each.sample.name] = word
        chosen.append(replace(each, flipped=word is None))
    return tuple(chosen), _notes(kept, len({each.sample.name for each in trained}))


def forbidden_words_pattern(words: Sequence[str]) -> re.Pattern[str] | None:
    """An expression that finds the words, whole and in any case; None for no words.

    What parts words are all characters but letters and digits: of ``left_hand`` ``left`` is one.
    """
    parts = [r"\s+".join(map(re.escape, word.split())) for word in words if word.strip()]
    if not parts:
        return None
    either = "|".join(sorted(parts, key=len, reverse=True))
    return re.compile(rf"(?<![^\W_])(?:{either})(?![^\W_])", re.IGNORECASE)


def forbidding_word(captions: Sequence[str], pattern: re.Pattern[str] | None) -> str | None:
    """The first word in any of an image's texts that forbids to mirror it; None where none does."""
    if pattern is None:
        return None
    found = next((match for text in captions if (match := pattern.search(text))), None)
    return None if found is None else " ".join(found[0].lower().split())


def _notes(kept: dict[str, str], count: int) -> tuple[str, ...]:
    if not kept:
        return ()
    words = Counter(kept.values()).most_common()
    why = listed([f"{word} ({times})" for word, times in words], _NAMED, ", ")
    return (
        f"{len(kept)} of {count} images, such as {next(iter(kept))}, are never mirrored, because "
        f"dataset.flip_except has words of their captions: {why}",
    )
