"""``demo``: train on the bundled pictures and show what was learned."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from .arguments import Arguments
from .console import show, show_json
from .watching import watching

if TYPE_CHECKING:
    from ..demo.run import DemoSummary

_CHOICES = {"kind": ("lokr", "lora", "loha"), "task": ("generate", "edit", "own")}
"""What can be chosen; the first is the default."""


def run(arguments: Arguments) -> int:
    """Run the demonstration; returns the exit code.

    Raises:
        InputError: When a setting is unknown or none of its choices.
        RunError: When training failed, or the adapter learned or kept next to nothing.
    """
    arguments.at_most(0)
    given = arguments.only(("kind", "task", "output"))
    chosen = {name: given.get(name, choices[0]) for name, choices in _CHOICES.items()}
    for name, choices in _CHOICES.items():
        if chosen[name] not in choices:
            raise InputError(
                f"{name}={chosen[name]}",
                "one of " + ", ".join(choices),
                f"Name one of these, or leave {name} out for {choices[0]}.",
            )
    from ..demo.bars import require_working
    from ..demo.run import run_demo

    output = Path(given.get("output") or "demo_output").absolute()
    with watching(as_json=arguments.json) as observer:
        summary = run_demo(chosen["kind"], chosen["task"], output, observer)
    if arguments.json:
        show_json(dataclasses.asdict(summary))
    else:
        show(learned_text(summary, output))
    require_working(summary)
    return 0


def learned_text(summary: DemoSummary, output: Path) -> str:
    """What the demonstration showed, for a person.

    Args:
        summary: Shares of right pictures, and paths relative to `output`.
        output: The demonstration's folder.
    """
    from ..demo.bars import KEPT, LEARNED

    facts = {
        "Learned": f"{summary.base_accuracy:.0%} of the pictures right before training, "
        f"{summary.adapter_accuracy:.0%} with the adapter ({LEARNED.text(summary)})",
        "Kept": f"{summary.base_captions_accuracy:.0%} right of what the base could do before "
        f"({KEPT.text(summary)})",
        "Trained": f"{summary.train_seconds:.0f} seconds",
        "Adapter": str(output / summary.adapter),
        "Pictures": ", ".join(str(output / picture) for picture in summary.pictures),
        "Summary": str(output / "summary.json"),
    }
    return "\n".join(f"{name + ':':<10}{fact}" for name, fact in facts.items())
