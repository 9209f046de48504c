"""``inspect``: describe an adapter file."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .arguments import Arguments
from .console import show_report


def run(arguments: Arguments) -> int:
    """Describe a file; returns the exit code.

    Raises:
        AdapterFileError: When it is no adapter file that the trainer knows.
    """
    arguments.only(())
    path = Path(arguments.word("an adapter file")).expanduser()
    from ..formats import inspect_adapter

    report = dataclasses.asdict(inspect_adapter(path))
    if not arguments.json:
        report["norms"] = norm_summary(report["norms"])
        report["metadata"] = {
            name: readable(text) for name, text in sorted(report["metadata"].items())
        }
    show_report({**report, "family": report["family"] or _family_of(path)}, as_json=arguments.json)
    return 0


def norm_summary(norms: Mapping[str, float]) -> dict[str, Any]:
    """The norms of all layers in a few lines.

    Args:
        norms: Layer to the Frobenius norm of its delta; at least one.
    """
    weakest, strongest = min(norms, key=norms.__getitem__), max(norms, key=norms.__getitem__)
    return {
        "layers": len(norms),
        "median": round(statistics.median(norms.values()), 4),
        "smallest": {weakest: round(norms[weakest], 4)},
        "largest": {strongest: round(norms[strongest], 4)},
    }


def readable(text: str) -> Any:
    """A header's string; one that holds a JSON object or list as what it holds."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _family_of(path: Path) -> str | None:
    """Guess the family of a file that does not say it, by the names of its tensors."""
    from safetensors import safe_open

    from ..families import FAMILIES

    with safe_open(str(path), framework="pt") as file:
        names = list(file.keys())
    return next((name for name, family in FAMILIES.items() if family.detect(names)), None)
