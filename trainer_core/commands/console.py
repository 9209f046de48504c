"""What the command line prints: the only module that writes to the terminal.

Text for people or, on request, one JSON object a line for programs. Results go to the standard
output, errors to the standard error (with ``--json`` both to the output, as events).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ..config.dialect import format_yaml
from ..errors import TrainerError


def prepare_streams() -> None:
    """Keep a terminal that lacks a character from ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def show(text: str) -> None:
    """Print text for a person."""
    print(text, flush=True)


def show_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a finished report: YAML for a person, one JSON object for a program."""
    if as_json:
        show_json(report)
    else:
        show(format_yaml(plain(report)).rstrip("\n"))


def show_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(plain(value), allow_nan=False), flush=True)


def show_error(error: TrainerError, *, as_json: bool) -> None:
    """Print an error in its three parts."""
    if as_json:
        parts = {"found": error.found, "expected": error.expected, "remedy": error.remedy}
        show_json({"event": "error", **parts, "exit_code": error.exit_code})
    else:
        print(error, file=sys.stderr, flush=True)


def show_note(text: str) -> None:
    """Print what a person should know of the input beside every kind of result."""
    print(text, file=sys.stderr, flush=True)


def overwrite_line(text: str, stream: TextIO | None = None) -> None:
    """Replace the terminal's current line; an empty text clears it."""
    # Erase to the end of the line, so that a shorter text leaves nothing of a longer one.
    print(f"\r{text}\x1b[K", end="", file=stream or sys.stdout, flush=True)


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
