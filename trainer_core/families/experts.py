"""Models that are two: one samples high noise, with which a generation begins, one low noise."""

from __future__ import annotations

import re

HIGH, LOW = "high", "low"

_NAME = re.compile(r"(high|low)[ _.-]?noise|(?:a14b|2[._]?2.*14b).*?(?<![a-z])(high|low)(?![a-z])")
_ONE_OF_TWO = re.compile(r"(?<![a-z0-9])a14b(?![a-z0-9])")


def named_role(title: str) -> str:
    """`HIGH` or `LOW` where the name of a file says so; empty where it does not, or says both."""
    says = {one or other for one, other in _NAME.findall(title.casefold())}
    return says.pop() if len(says) == 1 else ""


def names_one_of_two(title: str) -> bool:
    """Whether the name of a file says that it is one of two, whichever."""
    return _ONE_OF_TWO.search(title.casefold()) is not None
