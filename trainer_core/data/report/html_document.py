"""An HTML file that has everything in it: no script, no network.

Names and texts come from anybody. Each passes `html_text`, which writes what hides or turns text as
an escape and then escapes HTML; and the file's own policy lets a browser load nothing at all.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...errors import TrainerError
from ...filesystem.text_files import read_text
from ...printable import shortened, single_line

_LONGEST = 600
_STYLE = Path(__file__).with_name("html_page.css")
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'"


def html_text(text: str, longest: int = _LONGEST) -> str:
    """Text of anybody, fit for the page: visible, short, escaped."""
    return html.escape(single_line(shortened(text, longest)), quote=True)


def tiles(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Facts as cards: a value, and what it is."""
    yield '<dl class="tiles">'
    for value, word in facts:
        yield f"<div><dt>{html_text(word)}</dt><dd>{html_text(value)}</dd></div>"
    yield "</dl>"


def document(title: str, parts: Iterable[str], style: str = "") -> str:
    """A whole HTML document.

    Args:
        title: Of the page, escaped.
        parts: HTML of its body.
        style: Rules behind those that all pages share.
    """
    shared = read_text(
        _STYLE, lambda why: TrainerError(why, _STYLE.name, "Install the pack again.")
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{shared}{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )
