"""What the demonstration has to show, and when it shows that something is broken.

The marks of fifty images move by several points between processors and versions of torch, so a
share just below its bar is told and no more; only one far below it is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import RunError

if TYPE_CHECKING:
    from .run import DemoSummary


@dataclass(frozen=True, slots=True)
class Bar:
    """What a share of right images is wanted to be.

    Attributes:
        share: Reads the share, in [0, 1], from a summary.
        asked: What the share is of, in words.
        wanted: At least this share is wanted.
    """

    share: Callable[[DemoSummary], float]
    asked: str
    wanted: float

    def broken(self, summary: DemoSummary) -> bool:
        """Whether a summary is so far below the bar that something does not work."""
        return self.share(summary) < self.wanted / 2

    def text(self, summary: DemoSummary) -> str:
        """The bar, and whether a summary misses it."""
        missed = self.share(summary) < self.wanted
        return f"below the bar of {self.wanted:.0%}" if missed else f"bar: {self.wanted:.0%}"


LEARNED = Bar(lambda s: s.adapter_accuracy, "of what it was trained for", 0.80)
KEPT = Bar(lambda s: s.base_captions_accuracy, "of what the base could do before", 0.75)


def require_working(summary: DemoSummary) -> None:
    """Make sure that the trained adapter is not far from what it should be.

    Args:
        summary: Of a demonstration of any kind and task.

    Raises:
        RunError: When it learned or kept so little that something must be broken.
    """
    broken = [bar for bar in (LEARNED, KEPT) if bar.broken(summary)]
    if not broken:
        return
    found = " and ".join(f"{bar.share(summary):.0%} {bar.asked}" for bar in broken)
    expected = " and ".join(f"{bar.wanted:.0%} {bar.asked}" for bar in broken)
    raise RunError(
        f"the {summary.kind} adapter draws only {found} right",
        f"{expected}, and never less than half of that",
        "Look at the pictures and run `adapter-trainer doctor`; if it is the same again in another "
        "output folder, report it with summary.json and your versions.",
    )
