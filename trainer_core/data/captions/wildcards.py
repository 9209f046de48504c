"""Parses wildcards in captions: ``a {red|blue} car``.

Braces hold alternatives with bars between them, and alternatives may hold braces. One of them may
be empty: ``a {small |}car``. Behind a backslash a brace, a bar or a backslash is itself. Bars
outside of braces are bars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...errors import DatasetError

EXPECTED_RULES = (
    "choices as {red|blue}, closed and with a word at least, at most 2000 of them, and at most "
    "1000 tags where they are shuffled; a brace that is none as \\{",
    "Correct the captions, or set dataset.captions.wildcards: false or dataset.captions.shuffle: "
    "0.",
)
"""What is expected of captions to which rules are applied, and what is to do."""

_DEEPEST = 10
_MOST = 2000  # choices of a caption; of more the number of ways has thousands of digits
_SPECIAL = "{}|\\"
_SHOWN = 40


class CaptionRuleError(DatasetError):
    """A caption to which ``dataset.captions`` cannot be applied."""


class Wildcards(NamedTuple):
    """A text with wildcards in it.

    Attributes:
        parts: Pieces one after the other: a text, or the alternatives that one is chosen from.
        ways: In how many ways it can be read; at least 1.
    """

    parts: tuple[str | tuple[Wildcards, ...], ...]
    ways: int

    @classmethod
    def of(cls, *parts: str | tuple[Wildcards, ...]) -> Wildcards:
        """Put pieces together."""
        count = 1
        for part in parts:
            count *= 1 if isinstance(part, str) else sum(each.ways for each in part)
        return cls(parts, count)

    def text(self, number: int) -> str:
        """The text of one of the ways to read it.

        Args:
            number: 0 to ``ways`` - 1; 0 takes the first alternative everywhere, and the last
                choice changes first.
        """
        pieces: list[str] = []
        for part in reversed(self.parts):
            if isinstance(part, str):
                pieces.append(part)
                continue
            number, place = divmod(number, sum(each.ways for each in part))
            for each in part:
                if place < each.ways:
                    pieces.append(each.text(place))
                    break
                place -= each.ways
        return "".join(reversed(pieces))


@dataclass(slots=True)
class _Reader:
    """Reads a caption from left to right."""

    caption: str
    key: str
    place: int = 0
    count: int = 0

    def read(self, depth: int) -> Wildcards:
        """Read up to the bar or brace that ends an alternative, or to the caption's end."""
        parts: list[str | tuple[Wildcards, ...]] = []
        words: list[str] = []
        while self.place < len(self.caption):
            sign = self.caption[self.place]
            if sign == "\\" and self.caption[self.place + 1 : self.place + 2] in tuple(_SPECIAL):
                words.append(self.caption[self.place + 1])
                self.place += 2
            elif sign == "{":
                parts += ["".join(words), self._alternatives(depth + 1)]
                words = []
            elif sign == "}" and not depth:
                raise self._wrong("is closed and was not opened", self.place)
            elif depth and sign in "|}":
                break
            else:
                words.append(sign)
                self.place += 1
        parts.append("".join(words))
        return Wildcards.of(*(part for part in parts if part))

    def _alternatives(self, depth: int) -> tuple[Wildcards, ...]:
        begin = self.place
        self.count += 1
        if self.count > _MOST:
            raise self._wrong(f"is one of more than {_MOST}", begin)
        if depth > _DEEPEST:
            raise self._wrong(f"lies in more than {_DEEPEST} others", begin)
        found: dict[Wildcards, None] = {}
        while True:
            self.place += 1
            found[self.read(depth)] = None
            if self.place == len(self.caption):
                raise self._wrong("is not closed", begin)
            if self.caption[self.place] == "}":
                break
        self.place += 1
        if not any(each.parts for each in found):
            raise self._wrong("has nothing to choose from", begin)
        return tuple(found)

    def _wrong(self, what: str, place: int) -> CaptionRuleError:
        begin = max(0, place - _SHOWN // 2)
        near = self.caption[begin : begin + _SHOWN]
        return CaptionRuleError(
            f"{self.key}: a choice {what}, at character {place + 1} of the caption, near {near!r}",
            *EXPECTED_RULES,
        )


def read_wildcards(caption: str, key: str) -> Wildcards:
    """Read a caption with wildcards.

    Raises:
        CaptionRuleError: When a brace is not closed or not opened, a choice has nothing but empty
            alternatives, more than 10 of them lie in each other, or there are more than 2000.
    """
    return _Reader(caption, key).read(0)
