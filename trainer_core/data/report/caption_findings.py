"""What the captions of a dataset are like, and what in them may be a mistake."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...config import DatasetSection, dataset_folders
from ...types import Sample
from ..captions.bracket_weights import escaped_brackets, has_weights
from ..captions.length import TextLimit, may_be_long
from .dataset_report import Finding, ReportedCaptions, Spread
from .finding_kinds import KINDS

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_FREQUENT = 24
_COMMON_SHARE = 0.8
_ENOUGH = 5
# Words of any caption: they say nothing of what is seen.
_PLAIN = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "by", "for"),
        *("from", "has", "her", "his", "in", "into", "is", "it", "its"),
        *("of", "on", "or", "over", "that", "the", "their", "there", "this"),
        *("to", "under", "up", "with"),
    )
)


def caption_report(
    samples: Sequence[Sample], tokens: Mapping[str, int] | None, limit: TextLimit | None
) -> ReportedCaptions:
    """Describe the texts.

    Args:
        tokens: What `captions.length.caption_tokens` gave; None without a tokenizer.
        limit: How many are read; None without a tokenizer.
    """
    lengths: list[int] = []
    counts: Counter[str] = Counter()
    different: set[str] = set()
    texts = written = 0
    for sample in samples:
        own = [text for text in sample.captions if text]
        texts += len(own)
        written += bool(own)
        different.update(own)
        lengths += [len(text.split()) for text in own]
        counts.update({word for text in own for word in _words(text)})
    return ReportedCaptions(
        written=written,
        texts=texts,
        different=len(different),
        words=length_spread(lengths),
        tokens=None if tokens is None else length_spread(list(tokens.values())),
        limit=None if limit is None else limit.tokens,
        frequent=tuple(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_FREQUENT]),
    )


def _words(text: str) -> Iterator[str]:
    words = _WORD.findall(text.lower())
    return (word for word in words if word not in _PLAIN and not word.isdecimal())


def length_spread(numbers: Sequence[int]) -> Spread | None:
    """Shortest, median and longest; None of nothing."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    return Spread(ordered[0], ordered[len(ordered) // 2], ordered[-1])


def cut_captions(
    samples: Sequence[Sample], tokens: Mapping[str, int], limit: TextLimit
) -> Iterator[Finding]:
    """The captions whose end is not read."""
    long = [
        sample for sample in may_be_long(samples, 0) if tokens.get(sample.name, 0) > limit.tokens
    ]
    if long:
        details = tuple(f"{tokens[each.name]} tokens of {limit.tokens}" for each in long)
        yield Finding("caption_cut", "warning", tuple(each.name for each in long), details)


def caption_findings(samples: Sequence[Sample], dataset: DatasetSection) -> Iterator[Finding]:
    """What the texts alone tell: a trigger word that is not everywhere, none, the same.

    Args:
        samples: All of them; those of regularization need no trigger word.
    """
    yield from _without_trigger(samples, dataset)
    empty = tuple(each.name for each in samples if not any(each.captions))
    if empty:
        yield Finding("caption_empty", "note", empty)
    triggers = {each.settings.trigger_word.strip() for each in dataset_folders(dataset)}
    groups: dict[str, list[str]] = {}
    for each in samples:
        if each.caption and each.caption not in triggers:
            groups.setdefault(each.caption, []).append(each.name)
    shared = [tuple(names) for names in groups.values() if len(names) > 1]
    if shared:
        names = tuple(name for group in shared for name in group)
        yield Finding("caption_same", "note", names, groups=tuple(shared))


def bracket_findings(samples: Sequence[Sample], dataset: DatasetSection) -> Iterator[Finding]:
    """What becomes of round brackets where a tokenizer reads them as weights."""
    escapes = [each.settings.captions.escape_brackets for each in dataset_folders(dataset)]
    found: dict[str, list[str]] = {"brackets_weigh": [], "brackets_kept": []}
    for each in samples:
        read = [escaped_brackets(text) if escapes[each.folder] else text for text in each.captions]
        if any(map(has_weights, read)):
            found["brackets_weigh"].append(each.name)
        elif read != list(each.captions):
            found["brackets_kept"].append(each.name)
    yield from (Finding(kind, KINDS[kind].severity, tuple(on)) for kind, on in found.items() if on)


def _without_trigger(samples: Sequence[Sample], dataset: DatasetSection) -> Iterator[Finding]:
    own: dict[int, list[Sample]] = {}
    for each in samples:
        if not each.regularization:
            own.setdefault(each.folder, []).append(each)
    folders = dataset_folders(dataset)
    names: list[str] = []
    details: list[str] = []
    for number, group in own.items():
        settings = folders[number].settings if number < len(folders) else dataset
        word = settings.trigger_word.strip() or _first_word(group)
        if not word:
            continue
        lacking = [each for each in group if not all(word in text for text in each.captions)]
        names += [each.name for each in lacking]
        details += [f"no {word!r} in its caption"] * len(lacking)
    if names:
        yield Finding("trigger_missing", "warning", tuple(names), tuple(details))


def _first_word(samples: Sequence[Sample]) -> str:
    """The word that nearly all captions begin with and that is not a common one; else empty."""
    first = Counter(
        words[0].rstrip(",.:;") for each in samples if (words := each.caption.split(maxsplit=1))
    )
    if len(samples) < _ENOUGH or not first:
        return ""
    word, count = first.most_common(1)[0]
    common = word.lower() in _PLAIN or len(word) < 2
    return word if not common and _COMMON_SHARE * len(samples) <= count < len(samples) else ""
