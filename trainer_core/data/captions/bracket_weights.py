"""Round brackets of captions, which ComfyUI's tokenizers read as weights of words.

Source: ComfyUI 0.33, ``comfy/sd1_clip.py`` (`token_weights`, `escape_important`).
"""

from __future__ import annotations

import re

_BRACKET = re.compile(r"(?<!\\)[()]")
_WEIGHT = re.compile(r"(?:(?<!\d):\s*[+-]?\d+|:\s*[+-]?\d*\.\d+)\s*")
"""How a bracket of a weight ends, as ``red:1.2``; not as a ratio or a time, as ``16:9``."""


def escaped_brackets(caption: str) -> str:
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
        elif opened:
            first = opened.pop()
            colon = caption.rfind(":", first + 2, place)
            if colon > 0 and _WEIGHT.fullmatch(caption, colon, place):
                weights |= {first, place}
    letters = list(caption)
    for place in set(brackets) - weights:
        letters[place] = f"\\{letters[place]}"
    return "".join(letters)


def has_weights(caption: str) -> bool:
    """Whether brackets of a caption are read as weights, as ComfyUI's `parse_parentheses` pairs."""
    depth = 0
    last = -1
    for last in (each.start() for each in _BRACKET.finditer(caption)):
        depth += 1 if caption[last] == "(" else -1
        if depth == 0 and caption[last] == ")":
            return True
    # One that is not closed ends with the text, where that ends with another's bracket.
    return depth > 0 and last == len(caption) - 1 and caption[last] == ")"
