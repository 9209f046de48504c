"""Round brackets of captions, which ComfyUI's tokenizers read as weights of words.

Source: ComfyUI 0.33, ``comfy/sd1_clip.py`` (`token_weights`, `escape_important`).
"""

from __future__ import annotations

import re

_BRACKET = re.compile(r"(?<!\\)[()]")
_WEIGHT = re.compile(r".*(?:(?<!\d):\s*[+-]?\d+|:\s*[+-]?\d*\.\d+)\s*", re.DOTALL)
"""What a bracket of a weight holds, as ``red:1.2``; not a ratio or a time, as ``16:9``."""
_WEIGHED = re.compile(r"(?<!\\)\(.*(?<!\\)\)", re.DOTALL)


def escaped(caption: str) -> str:
    r"""A caption of which round brackets are letters: ``miku \(vocaloid\)``.

    What is escaped stays as it is, and so does a weight that is written with its number, as
    ``(red:1.2)``.
    """
    opened: list[int] = []
    weights: set[int] = set()
    brackets = [each.start() for each in _BRACKET.finditer(caption)]
    for place in brackets:
        if caption[place] == "(":
            opened.append(place)
        elif opened and _WEIGHT.fullmatch(caption, (first := opened.pop()) + 2, place):
            weights |= {first, place}
    letters = list(caption)
    for place in set(brackets) - weights:
        letters[place] = f"\\{letters[place]}"
    return "".join(letters)


def has_weights(caption: str) -> bool:
    """Whether brackets of a caption are read as weights."""
    return _WEIGHED.search(caption) is not None
