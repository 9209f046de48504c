"""Settings of what a run does when something goes wrong."""

from __future__ import annotations

from .section import Section, setting


class RecoverySection(Section):
    """How often a run goes on by itself after numbers that are not finite."""

    skips: int = setting(
        3,
        "Leave it. How many steps in a row whose loss or gradient is not finite are left out and "
        "counted, before the run goes back to its last checkpoint. 0: none.",
        advanced=True,
        ge=0,
        le=1000,
    )
    returns: int = setting(
        1,
        "Leave it; take 0 to stop at once. How often the run goes back to its last checkpoint and "
        "on with a lower learning rate, before it stops.",
        advanced=True,
        ge=0,
        le=100,
    )
    rate_factor: float = setting(
        0.5,
        "Leave it. What the learning rate is multiplied by each time the run goes back to its "
        "last checkpoint.",
        advanced=True,
        gt=0.0,
        le=1.0,
    )
    smaller: bool = setting(
        True,
        "Leave it on. When memory is full in a step, the run does what costs least time: more "
        "blocks compute their activations again or are swapped, or the samples of a batch go "
        "through the base in parts. Each is said. Off: the run saves and stops.",
        advanced=True,
    )
