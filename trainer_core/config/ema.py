"""Settings of the average of an adapter's weights."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting


class EmaSection(Section):
    """An exponential moving average of the adapter's weights, beside those that are trained."""

    decay: float = setting(
        0.0,
        "Leave it at 0 (off); take 0.99 when previews change a lot from step to step. How much of "
        "the average each step keeps; the first steps keep less. Needs the adapter's size in "
        "memory once more.",
        ge=0.0,
        lt=1.0,
    )
    previews: Literal["average", "last"] = setting(
        "average",
        "Leave it on average. What previews and the loss on held-out images are made with: the "
        "'average', or the 'last' weights.",
        advanced=True,
    )
    export: Literal["average", "last", "both"] = setting(
        "average",
        "Leave it on average; take both to compare. What the exported adapter is: the 'average', "
        "the 'last' weights, or 'both', the last ones in a second file NAME_last.",
        advanced=True,
    )
    post_hoc: bool = setting(
        False,
        "Leave it off; switch it on to choose the average's length after the run, with the verb "
        "ema. Keeps two more averages in each checkpoint, from which others can be made.",
        advanced=True,
    )
