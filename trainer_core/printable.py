"""Text from files, made fit for a terminal and for a person: no control characters, no floods."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Collection, Iterable
from itertools import islice

LONGEST = 2000
"""Characters of one value, or of one part of an error."""

MOST = 40
"""Items of one list in a report."""

# Control characters, invisible format characters such as those that turn the direction of writing,
# halves of a pair of code units, and the separators of lines and paragraphs.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """Write characters that a terminal would act on, or hide, as escapes.

    Args:
        text: Any text, such as one that holds a file's name.

    Returns:
        The text; line feeds and tabs stay, because our own layout needs them.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(map(_escaped, text))


def nearest(word: str, words: Iterable[str], cutoff: float) -> str:
    """The word that may have been meant, first by its beginning, then the most similar; else empty.

    Args:
        cutoff: Least similarity, in [0, 1].
    """
    known = list(words)
    longer = [each for each in known if word and each.startswith(word)]
    return (longer or difflib.get_close_matches(word, known, n=1, cutoff=cutoff) or [""])[0]


def single_line(text: str) -> str:
    """As `printable`, with line feeds and tabs escaped too: for a line that is drawn again."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def shortened(text: str, longest: int = LONGEST) -> str:
    """Cut a text off, and say how long it was."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}... (and {grouped(len(text) - longest)} more characters)"


def listed(names: Iterable[str], most: int = MOST, separator: str = ", ") -> str:
    """Name the first of many, and count the rest: ``a, b, and 59 990 more``."""
    every = names if isinstance(names, Collection) else list(names)
    shown = [shortened(name, 200) for name in islice(every, most)]
    rest = len(every) - len(shown)
    return separator.join([*shown, f"and {grouped(rest)} more"] if rest else shown)


def grouped(count: int) -> str:
    """Write a number with a thin gap after every three digits: ``59 990``."""
    return f"{count:,}".replace(",", " ")


def _escaped(letter: str) -> str:
    if letter in _KEPT or unicodedata.category(letter) not in _UNSAFE:
        return letter
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def gibibytes(count: int) -> str:
    """Write a number of bytes for a person, as ``1.50 GiB`` or ``12.3 MiB``."""
    if count >= 1 << 30:
        return f"{count / (1 << 30):.2f} GiB"
    return f"{count / (1 << 20):.1f} MiB"
