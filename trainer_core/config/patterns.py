"""Regular expressions on layer names: whether they are ones, and cannot run for long.

Python's matcher holds the whole process while it runs, and tries every way in which an expression
can lie on a text. The number of ways is bounded here before the expression is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..errors import AdapterError
from .section import Problem
from .yaml_dialect import value_in_words

LONGEST_NAME = 128
"""Characters of a layer's name that the bound reckons with."""

NO_EXPRESSION = "is not a regular expression"
"""What a mistake says of a text that Python cannot compile."""

_LONGEST_PATTERN = 1000
_SHOWN = 200
_MOST_WAYS = 10_000_000
"""Ways to lie on a name: of four repetitions it is 12 million, and 10 ms for each name."""

_TOKEN = re.compile(
    r"(?P<atom>\\\D|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[()|*+?{])"
    r"|(?P<open>\((?:\?[:=!])?(?!\?))"
    r"|(?P<close>\))"
    r"|(?P<bar>\|)"
    r"|(?P<times>[*+?]|\{(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\})[?+]?",
    re.DOTALL,
)


@dataclass(slots=True)
class _Part:
    """How a part of an expression can lie on a text.

    Attributes:
        ways: Choices between alternatives and lengths, without the repetitions.
        repetitions: Parts of any length that can stand one behind the other.
        group: Whether it is in brackets.
    """

    ways: int = 1
    repetitions: int = 0
    group: bool = False


@dataclass(slots=True)
class _Group:
    """An open bracket: the alternatives so far, and the parts of the present one."""

    alternatives: list[_Part] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)

    def end_alternative(self) -> None:
        whole = _Part(
            math.prod(part.ways for part in self.parts),
            sum(part.repetitions for part in self.parts),
        )
        self.alternatives.append(whole)
        self.parts = []

    def closed(self) -> _Part:
        self.end_alternative()
        ways = sum(each.ways for each in self.alternatives)
        return _Part(ways, max(each.repetitions for each in self.alternatives), group=True)


def pattern_mistake(pattern: str, longest_name: int = LONGEST_NAME) -> str:
    """Say why a text cannot be used as a regular expression on layer names.

    What is wrong stands behind the pattern as a predicate; empty when nothing is.
    """
    if len(pattern) > _LONGEST_PATTERN:
        return f"is longer than {_LONGEST_PATTERN} characters"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{NO_EXPRESSION} ({error})"
    return _slowness(pattern, longest_name)


PATTERN_EXPECTED = (
    "a Python regular expression on layer names, with at most three repetitions, and none of a "
    "bracket"
)
"""What an error says that was expected."""

PATTERN_REMEDY = (
    "Correct it: a dot of a name is written \\., a star stands behind a dot, and names in brackets "
    "stand side by side, as in (to_q|to_k)."
)
"""What an error says is to do."""


def wrong_patterns(path: str, patterns: Iterable[str]) -> Iterator[Problem]:
    """Texts in the setting at ``path`` that cannot be used as patterns."""
    for pattern in patterns:
        mistake = pattern_mistake(pattern)
        if mistake:
            yield Problem(
                f"{path} has {value_in_words(pattern)}, which {mistake}",
                PATTERN_EXPECTED,
                PATTERN_REMEDY,
            )


def compile_pattern(pattern: str, setting: str) -> re.Pattern[str]:
    """Compile a user's pattern; messages name the setting.

    Raises:
        AdapterError: When it is not a regular expression, or could take long to match.
    """
    mistake = pattern_mistake(pattern)
    if mistake:
        raise AdapterError(
            f"{setting}: {pattern[:_SHOWN]!r} {mistake}", PATTERN_EXPECTED, PATTERN_REMEDY
        )
    return re.compile(pattern)


def _slowness(pattern: str, longest_name: int) -> str:
    """Why matching could take long; empty when it cannot."""
    groups, place = [_Group()], 0
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        if token is None:
            return f"has {pattern[place : place + 4]!r}, a form that is not read here"
        place = token.end()
        if token["open"]:
            groups.append(_Group())
        elif token["close"]:
            closed = groups.pop().closed()
            groups[-1].parts.append(closed)
        elif token["bar"]:
            groups[-1].end_alternative()
        elif token["atom"]:
            groups[-1].parts.append(_Part())
        elif not _repeat(groups[-1].parts[-1], token):
            return f"repeats a bracket with {token['times']}, so that it could run for ever"
    whole = groups[0].closed()
    ways = whole.ways * math.comb(longest_name + whole.repetitions, whole.repetitions)
    return f"could run for long (about {ways:.1g} ways to match)" if ways > _MOST_WAYS else ""


def _repeat(part: _Part, token: re.Match[str]) -> bool:
    """Let a part repeat; whether that is allowed."""
    if token["times"] == "?":
        part.ways += 1
        return True
    if part.group:
        return False
    if token["most"] or (token["least"] and not token["comma"]):
        most = int(token["most"] or token["least"])
        part.ways *= max(1, most - int(token["least"] or 0) + 1) if token["comma"] else 1
    else:
        part.repetitions += 1
    return True
