"""``template``: print a commented run file."""

from __future__ import annotations

from ..errors import InputError
from ..families.run_files import run_file_template, templates
from .arguments import Arguments
from .console import show, show_json


def run(arguments: Arguments) -> int:
    """Print the run file of a family and a purpose; returns the exit code.

    Raises:
        InputError: When the family or the purpose is unknown.
    """
    arguments.at_most(2)
    arguments.only(())
    if not arguments.words:
        raise InputError(
            "no family behind the verb",
            "one of " + ", ".join(templates()),
            f"Name a family, such as `adapter-trainer template {next(iter(templates()))}`.",
        )
    family, purpose = (*arguments.words, "generate")[:2]
    text = run_file_template(family, purpose).rstrip("\n")
    if arguments.json:
        show_json({"family": family, "purpose": purpose, "run_file": text})
    else:
        show(text)
    return 0
