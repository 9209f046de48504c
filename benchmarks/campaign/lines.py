"""The results: one line of JSON for each, written at once, so that nothing measured is lost."""

from __future__ import annotations

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
    """Add a result, and have it on the disk."""
    with (folder / NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """All results so far; a line that was cut off in the middle is none."""
    path = folder / NAME
    found: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def begin(folder: Path, name: str) -> None:
    """Say what is measured next."""
    (folder / BEGUN).write_text(json.dumps({"cell": name}), encoding="utf-8")


def end(folder: Path) -> None:
    """Say that nothing is being measured."""
    (folder / BEGUN).unlink(missing_ok=True)


def begun(folder: Path) -> str | None:
    """What was being measured, or None."""
    path = folder / BEGUN
    return json.loads(path.read_text(encoding="utf-8"))["cell"] if path.is_file() else None
