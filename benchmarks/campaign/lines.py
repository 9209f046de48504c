"""The results: one line of JSON for each, written at once, so that nothing measured is lost."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "results.jsonl"
"""The file in the output folder."""

BEGUN = "begun.json"
"""Names what is being measured, for whoever finds the process gone."""


def write_line(folder: Path, line: Mapping[str, Any]) -> None:
    """Add a result, and have it on the disk.

    Raises:
        OSError: When it is not written whole; the next one begins a line of its own.
    """
    with (folder / NAME).open("a+b") as file:
        cut_off = False
        if file.seekable() and file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            cut_off = file.read(1) != b"\n"
        file.write(b"\n" * cut_off + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """All results so far; a line that was cut off in the middle, or is no result, is none."""
    path = folder / NAME
    found: list[dict[str, Any]] = []
    for text in path.read_bytes().split(b"\n") if path.is_file() else ():
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and {"part", "call"} <= line.keys():
                found.append(line)
    return found


def begin(folder: Path, name: str) -> None:
    """Say what is measured next."""
    (folder / BEGUN).write_text(json.dumps({"cell": name}), encoding="utf-8")


def end(folder: Path) -> None:
    """Say that nothing is being measured."""
    (folder / BEGUN).unlink(missing_ok=True)


def begun(folder: Path) -> str | None:
    """What was being measured, or None."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return json.loads((folder / BEGUN).read_bytes())["cell"]
    return None
