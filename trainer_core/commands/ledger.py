"""``ledger``: the images of a run that are learned worst."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import VERBS
from .arguments import Arguments, existing, whole_number
from .console import show, show_json

_MOST = 20


def ledger(arguments: Arguments) -> int:
    """List the images that are learned worst; returns the exit code.

    Raises:
        InputError: When the folder has no ledger, or it is damaged.
    """
    own = arguments.only(VERBS["ledger"].own)
    most = whole_number(own, "most", 1)
    place = existing(arguments.word("the folder of a run"), "the folder of a run")
    from ..training.checkpoints.run_folder import find_version
    from ..training.metrics.loss_ledger import LEDGER, read_ledger

    folder = find_version(place, LEDGER)
    found = read_ledger(folder)
    if arguments.json:
        show_json({"folder": folder, **found, "images": found["images"][:most]})
    else:
        show(ledger_text(found, folder, most or _MOST))
    return 0


def ledger_text(found: Mapping[str, Any], folder: Path, most: int) -> str:
    """A ledger for a person."""
    rows = found["images"][:most]
    lines = [f"{folder}, step {found['step']}: {len(rows)} of {found['measured']} images"]
    if rows:
        lines.append(f"{'ratio':>7} {'times':>6} {'last':>7}  image")
    lines += [
        f"{each['ratio']:>7.2f} {each['times']:>6} {each['last']:>7.2f}  {each['name']}"
        for each in rows
    ]
    return "\n".join(lines)
