"""What the command line prints: the only module that writes to the terminal.

Text for people or, on request, one JSON object a line for programs. Results go to the standard
output, errors to the standard error (with ``--json`` both to the output, as events).

File names, captions, tensor keys and headers come from anybody. So everything for people passes
`printable` here, and what is long is told in short; JSON escapes by itself and is told whole.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ..config.dialect import format_yaml
from ..errors import TrainerError
from ..printable import LONGEST, MOST, grouped, printable, shortened, single_line

MOST_ENTRIES = 400
"""Entries of one table in a report for people; the headers of common files have about a hundred."""

_WHOLE = "--json tells all"
_LONGEST_MESSAGE = 20_000  # characters of one part of an error; a run file may have many mistakes


def prepare_streams() -> None:
    """Keep a terminal that lacks a character from ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


class _PrintableFormatter(logging.Formatter):
    """Messages of libraries too name files."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(shortened(super().format(record), _LONGEST_MESSAGE))


def prepare_log() -> None:
    """Send warnings of the trainer and of libraries to the standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def show(text: str) -> None:
    """Print text for a person."""
    print(printable(text), flush=True)


def show_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a finished report: YAML for a person, one JSON object for a program."""
    if as_json:
        show_json(report)
    else:
        show(format_yaml(in_short(plain(report))).rstrip("\n"))


def show_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(plain(value), allow_nan=False), flush=True)


def show_error(error: TrainerError, *, as_json: bool) -> None:
    """Print an error in its three parts."""
    if as_json:
        parts = {"found": error.found, "expected": error.expected, "remedy": error.remedy}
        show_json({"event": "error", **parts, "exit_code": error.exit_code})
    else:
        short = TrainerError(
            shortened(error.found, _LONGEST_MESSAGE),
            shortened(error.expected, _LONGEST_MESSAGE),
            shortened(error.remedy, _LONGEST_MESSAGE),
        )
        print(printable(str(short)), file=sys.stderr, flush=True)


def show_note(text: str) -> None:
    """Print what a person should know of the input beside every kind of result."""
    print(text, file=sys.stderr, flush=True)


def overwrite_line(text: str, stream: TextIO | None = None) -> None:
    """Replace the terminal's current line; an empty text clears it."""
    # Erase to the end of the line, so that a shorter text leaves nothing of a longer one.
    print(f"\r{single_line(text)}\x1b[K", end="", file=stream or sys.stdout, flush=True)


def plain(value: Any) -> Any:
    """Turn a value into what JSON and YAML know; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def in_short(value: Any) -> Any:
    """Cut off long texts, lists and tables of plain values, and say how much there is more."""
    if isinstance(value, Mapping):
        kept = {shortened(key): in_short(item) for key, item in list(value.items())[:MOST_ENTRIES]}
        return kept | _rest(len(value) - MOST_ENTRIES)
    if isinstance(value, list):
        rest = len(value) - MOST
        kept = [in_short(item) for item in value[:MOST]]
        return [*kept, f"and {grouped(rest)} more ({_WHOLE})"] if rest > 0 else kept
    return shortened(value, LONGEST) if isinstance(value, str) else value


def _rest(count: int) -> dict[str, str]:
    return {"...": f"and {grouped(count)} more ({_WHOLE})"} if count > 0 else {}
