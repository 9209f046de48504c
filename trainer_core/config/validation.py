"""Settings of held-out images and the loss on them."""

from __future__ import annotations

from .section import Section, setting


class ValidationSection(Section):
    """Images that are never trained on, and how often the loss is measured on them."""

    share: float = setting(
        0.0,
        "Set it to about 0.1 when you have some hundred images, to see when the adapter only "
        "learns them by heart. Share of the own images that is held out, the same ones in each "
        "run of a seed. 0: none but those of folders with role validation.",
        ge=0.0,
        le=0.5,
    )
    every: int = setting(
        100,
        "Leave it; raise it when measuring takes too long. Steps between two measurements of the "
        "loss on held-out images, and on as many trained ones; the first is before step 1. A "
        "checkpoint is written where it is lowest.",
        advanced=True,
        ge=1,
    )
    most: int = setting(
        32,
        "Leave it; raise it for a steadier number. The most held-out images that are measured; of "
        "more than that, the same ones each time.",
        advanced=True,
        ge=1,
        le=100000,
    )
    noise_levels: int = setting(
        4,
        "Leave it; raise it for a steadier number. At how many noise levels each held-out image "
        "is measured; noise and levels are the same each time.",
        advanced=True,
        ge=1,
        le=100,
    )
