"""Caption rules: from the captions of one image to the texts that are encoded and trained.

Lines, choices, shuffled and dropped tags, prefix, suffix and the trigger word.

Each step is a function of the caption and the settings alone. So an image that is added or renamed
changes the texts of no other one, the same caption makes the same texts in every run and for every
image that has it, and what was encoded once is found again.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...config import DatasetSection
from ...config.folders import CaptionSection
from ...counters import counter_order, counter_seed
from .wildcards import EXPECTED_RULES, CaptionRuleError, Wildcards, read_wildcards

PLACEHOLDERS = ("[trigger]", "[name]")
"""What stands for the trigger word in captions that were written for ai-toolkit."""

# Chinese, Japanese and Korean are written without blanks between words.
_LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"

_TRIES = 20
"""Choices that are tried for each text that is wanted; several of them may read alike."""

_MOST_TAGS = 1000
_NO_RULES = CaptionSection()
_LISTED = 4096  # choices that are put into an order; of more than that some are drawn


def caption_texts(raw: Sequence[str], settings: DatasetSection, key: str) -> tuple[str, ...]:
    """Turn the captions of one image into the texts that it is trained with.

    Lines and choices are taken apart, tags are put into other orders, and prefix, suffix and
    trigger word are put around them, by ``dataset.captions`` and ``dataset.trigger_word``. Where
    that makes more texts than ``dataset.captions.most``, the captions take turns and the choices
    and orders of each are drawn from its own text.

    Args:
        raw: What its caption file says: one text, or the several of a list, as far as
            ``dataset.captions.length`` leaves them. None at all is the empty caption.
        settings: Those that hold for the image's folder (`config.dataset_folders`).

    Returns:
        At least one text and at most ``most``, none of them twice, in an order that depends on
        nothing else. With settings that are not touched it is the caption behind the trigger word.

    Raises:
        CaptionRuleError: When choices are not closed, hold nothing or lie too deep in each other,
            or a caption that is shuffled has more than 1000 tags.
    """
    rules = settings.captions
    # What most datasets have is not worth the rules: one text, and no rule at all.
    if len(raw) <= 1 and rules == _NO_RULES:
        return (with_trigger(settings.trigger_word, "".join(raw).strip()),)
    captions = _captions(raw, lines=rules.variants == "lines")
    if len(captions) > rules.most:
        drawn = counter_order(len(captions), 0, "captions", *captions)
        captions = [captions[place] for place in sorted(drawn[: rules.most])]
    sources = [_texts_of(caption, settings, key) for caption in captions]
    # A dictionary keeps the order and drops what is there already.
    found: dict[str, None] = {}
    while sources:
        for source in tuple(sources):
            text = next((text for text in source if text not in found), None)
            if text is None:
                sources.remove(source)
                continue
            found[text] = None
            if len(found) == rules.most:
                return tuple(found)
    return tuple(found)


def _captions(raw: Sequence[str], *, lines: bool) -> list[str]:
    parts = [line for text in raw for line in (text.splitlines() if lines else (text,))]
    captions = dict.fromkeys(text for part in parts if (text := part.strip()))
    return list(captions) or [""]


def _texts_of(caption: str, settings: DatasetSection, key: str) -> Iterator[str]:
    """All texts of one caption, each choice beside another order of the tags."""
    rules = settings.captions
    wildcards = read_wildcards(caption, key) if rules.wildcards else Wildcards.of(caption)
    orders = max(1, rules.shuffle)
    # Bounded, because choices may read alike and a caption may have fewer orders than wanted.
    pairs = _pairs(wildcards.ways, orders, caption, _TRIES * rules.most)
    known: dict[int, _Tags] = {}
    for choice, order in pairs:
        if choice not in known:
            known[choice] = _Tags.of(wildcards.text(choice).strip(), settings, key)
        tags = known[choice]
        if order < tags.orders:
            yield tags.text(order)


def _pairs(choices: int, orders: int, caption: str, tries: int) -> Iterator[tuple[int, int]]:
    """Each pair of a choice and an order once, so that both change from one to the next."""
    places = _places(choices, caption, tries)
    cycle = math.lcm(len(places), orders)
    for turn in range(min(len(places) * orders, max(tries, orders))):
        yield places[turn % len(places)], (turn + turn // cycle) % orders


def _places(choices: int, caption: str, tries: int) -> list[int]:
    """The numbers of all choices in an order of the caption's own, or of so many drawn ones."""
    if choices == 1:
        return [0]
    if choices <= _LISTED:
        return counter_order(choices, 0, "choices", caption)
    drawn = (counter_seed(0, "choice", caption, turn) % choices for turn in range(tries))
    return list(dict.fromkeys(drawn))


@dataclass(slots=True)
class _Tags:
    """One caption without choices: what stays in front, and the tags whose order may change.

    Attributes:
        written: All of it as it is written.
        orders: How many different orders there are, at most ``dataset.captions.shuffle``.
    """

    written: str
    settings: DatasetSection
    kept: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    between: str = ""
    orders: int = 1
    _turn: int = 0
    _drawn: dict[tuple[str, ...], None] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, settings: DatasetSection, key: str) -> _Tags:
        rules, text = settings.captions, _without_placeholders(settings.trigger_word, text)
        if not rules.shuffle:
            return cls(text, settings)
        # The trigger word stays in front, also where the caption begins with it.
        _, own = _trigger_and_rest(text, settings)
        mark = rules.separator
        tags = [tag for each in own.split(mark) if (tag := each.strip())]
        if (trigger := settings.trigger_word.strip()) in tags:
            tags.remove(trigger)  # It comes to stand in front.
        if len(tags) > _MOST_TAGS:
            found = f"{key}: a caption of {len(tags)} tags cannot be shuffled"
            raise CaptionRuleError(found, *EXPECTED_RULES)
        between = f"{mark} " if f"{mark} " in own and mark.strip() else mark
        kept, moved = tuple(tags[: rules.keep]), tuple(tags[rules.keep :])
        orders = min(rules.shuffle, _orders_of(moved))
        return cls(text, settings, kept, moved=moved, between=between, orders=orders)

    def text(self, order: int) -> str:
        """The text of one of the orders; 0 is the caption as it is written."""
        head, own = _trigger_and_rest(self.written, self.settings)
        rules = self.settings.captions
        if order:
            own = self.between.join((*self.kept, *self._left(self._moved(order), order)))
        whole = f"{rules.prefix}{own}{rules.suffix}"
        if head:
            return head + whole
        return with_trigger(self.settings.trigger_word, whole, add=rules.add_trigger)

    def _left(self, tags: tuple[str, ...], order: int) -> list[str]:
        """What is not dropped of some tags, by draws of the caption's own."""
        share = self.settings.captions.drop * 2**63
        names = ("dropped tag", order, *self.moved)
        return [
            tag
            for place, tag in enumerate(tags)
            if not share or counter_seed(0, place, *names) >= share
        ]

    def _moved(self, order: int) -> tuple[str, ...]:
        """The tags in the order of a number from 1, each number another one."""
        self._drawn.setdefault(self.moved)
        while len(self._drawn) <= order:
            places = counter_order(len(self.moved), 0, "tags", self._turn, *self.moved)
            self._drawn.setdefault(tuple(self.moved[place] for place in places))
            self._turn += 1
        return tuple(self._drawn)[order]


def _trigger_and_rest(text: str, settings: DatasetSection) -> tuple[str, str]:
    """Part a caption that begins with the trigger word already behind that."""
    trigger, rules = settings.trigger_word.strip(), settings.captions
    if not trigger:
        return "", text
    if text == trigger:
        return (f"{trigger}, " if rules.prefix or rules.suffix else trigger), ""
    if not text.startswith(f"{trigger},"):
        return "", text
    rest = text[len(trigger) + 1 :].lstrip()
    return text[: len(text) - len(rest)], rest


def _orders_of(tags: Sequence[str]) -> int:
    """In how many orders some tags can be put, of which the same ones may be there twice."""
    orders = math.factorial(len(tags))
    for same in Counter(tags).values():
        orders //= math.factorial(same)
    return orders


def with_trigger(trigger_word: str, caption: str, *, add: bool = True) -> str:
    """Put the trigger word into a caption: for `PLACEHOLDERS`, else in front, unless it has it.

    Args:
        trigger_word: As it is set; empty: the caption stays as it is.
    """
    trigger = trigger_word.strip()
    if not trigger:
        return caption
    caption = _without_placeholders(trigger, caption)
    if not add or _has_word(caption, trigger):
        return caption
    return f"{trigger}, {caption}" if caption else trigger


def _without_placeholders(trigger_word: str, caption: str) -> str:
    """Put the trigger word, where there is one, in the place of `PLACEHOLDERS`."""
    trigger = trigger_word.strip()
    for placeholder in PLACEHOLDERS if trigger else ():
        caption = caption.replace(placeholder, trigger)
    return caption


def _has_word(text: str, word: str) -> bool:
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
