"""``report``: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

from ..filesystem.storage import given_path, write_text
from . import VERBS
from .arguments import Arguments, existing
from .console import show, show_json


def report(arguments: Arguments) -> int:
    """Write a run's page; returns the exit code.

    Raises:
        InputError: When there is no run, or its record is damaged.
    """
    own = arguments.only(VERBS["report"].own)
    place = existing(arguments.word("the folder of a run"), "the folder of a run")
    from ..training.checkpoints.run_folder import find_version
    from ..training.run_page import run_page

    version = find_version(place)
    page = given_path(own["html"], "a file for the page") if "html" in own else None
    page = Path(page or version / "report.html").absolute()
    write_text(page, run_page(version))
    if arguments.json:
        show_json({"folder": version, "html": page})
    else:
        show(str(page))
    return 0
