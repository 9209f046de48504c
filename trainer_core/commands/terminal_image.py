"""Shows an image on a terminal that has colours: each character is two pixels, one above the other.

Only for people who see how an image looks without leaving the terminal; its path is printed too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_UPPER_HALF = "\N{UPPER HALF BLOCK}"
_PLAIN = "\x1b[0m"
_COLUMNS = 96
_TRUECOLOR = frozenset({"truecolor", "24bit"})


def can_show() -> bool:
    """Whether the output is a terminal that says it has 24-bit colours."""
    colours = os.environ.get("COLORTERM", "").lower() in _TRUECOLOR or "WT_SESSION" in os.environ
    if not (sys.stdout.isatty() and colours) or "NO_COLOR" in os.environ:
        return False
    try:
        _UPPER_HALF.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def terminal_lines(path: Path, columns: int = _COLUMNS) -> list[str]:
    """An image as lines of text with colours.

    Args:
        columns: Most characters in a line; a larger image is made smaller.
    """
    from PIL import Image

    from ..data.image import on_white

    with Image.open(path) as opened:
        image = on_white(opened).convert("RGB")
    width = min(columns, image.width)
    height = max(2, round(image.height * width / image.width) // 2 * 2)
    pixels = image.resize((width, height), Image.Resampling.LANCZOS).tobytes()
    rows = [pixels[start : start + 3 * width] for start in range(0, len(pixels), 3 * width)]
    return [
        "".join(_cell(above[x : x + 3], below[x : x + 3]) for x in range(0, 3 * width, 3)) + _PLAIN
        for above, below in zip(rows[::2], rows[1::2], strict=True)
    ]


def _cell(above: bytes, below: bytes) -> str:
    front, back = (";".join(map(str, colour)) for colour in (above, below))
    return f"\x1b[38;2;{front}m\x1b[48;2;{back}m{_UPPER_HALF}"
