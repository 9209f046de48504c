"""Which of the own images are held out, by share.

Each image is decided by the run's seed and its own name, so that images which are added or removed
move no other one to the other side, but for the last one that keeps a side from being empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..counters import counter_seed

_ALL = 2**63  # one more than the largest seed


def held_out(names: Sequence[str], share: float, seed: int) -> frozenset[str]:
    """Choose the images that are never trained on.

    Args:
        names: Of the own images.
        share: ``dataset.validation.share``, 0 to 0.5: the chance of each.
        seed: The run's seed.

    Returns:
        Some of the names: none with a share of 0 or of a single image; else at least one and never
        all.
    """
    if share <= 0 or len(names) < 2:
        return frozenset()
    drawn = {name: counter_seed(seed, "validation", name) for name in names}
    chosen = {name for name, number in drawn.items() if number < share * _ALL}
    order = sorted(drawn, key=lambda name: (drawn[name], name))
    if not chosen:
        chosen.add(order[0])
    elif len(chosen) == len(drawn):
        chosen.discard(order[-1])
    return frozenset(chosen)
