"""How large the adapter is beside the base's weights, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ...adapters import AttachedAdapter
from ...adapters.delta_norms import RelativeNorms
from ...device import is_out_of_memory
from ...errors import AdapterError

REST = "other layers"
"""Where layers outside of the base's repeated blocks are gathered."""


class AdapterNorms:
    """Measures an adapter's size in a run.

    Args:
        blocks: `LayerSpec.repeated_blocks`.
        every: Steps between two measurements; 0 for never.
        steps: Length of the run, behind which it is measured too.
        warn: Told why nothing is measured, in one line.
    """

    def __init__(
        self,
        adapter: AttachedAdapter,
        blocks: Sequence[str],
        every: int,
        steps: int,
        warn: Callable[[str], None],
    ) -> None:
        self._norms = RelativeNorms(adapter)
        self._places = {name: block_of(name, blocks) for name in adapter.names}
        self._every, self._steps, self._warn = every, steps, warn

    def measure(self, step: int) -> dict[str, float] | None:
        """Measure behind a step where it is due; the only wait for the device is for this.

        Returns:
            Block to the norm of its change over that of its weights, both of all of its adapted
            layers together; None where it is not due, or nothing can be measured.
        """
        if not self._every or (step % self._every and step != self._steps):
            return None
        try:
            found = by_block(self._norms.deltas(), self._norms.weights, self._places)
        except Exception as error:
            # A run does not end because something beside it cannot be looked at.
            if not isinstance(error, AdapterError) and not is_out_of_memory(error):
                raise
            self._every = 0
            reason = error.found if isinstance(error, AdapterError) else "the memory is full"
            self._warn(f"The adapter's size is not measured ({reason}).")
            return None
        if not found or not all(map(math.isfinite, found.values())):
            return None
        return found


def block_of(layer: str, blocks: Sequence[str]) -> str:
    """The repeated block that a layer is in, as ``<list>.<number>``; `REST` for none."""
    for name in sorted(blocks, key=len, reverse=True):
        number = layer.removeprefix(f"{name}.").partition(".")[0]
        if layer.startswith(f"{name}.") and number.isdecimal():
            return f"{name}.{number}"
    return REST


def by_block(
    deltas: Mapping[str, float], weights: Mapping[str, float], places: Mapping[str, str]
) -> dict[str, float]:
    """Gather layers' norms to those of their blocks, in the order of the numbers.

    Args:
        deltas: Layer to the norm of its change.
        weights: Layer to the norm of its weight, above zero.

    Returns:
        Block to the norm of its change over that of its weights.
    """
    squares: dict[str, list[float]] = {}
    for name, delta in deltas.items():
        sums = squares.setdefault(places[name], [0.0, 0.0])
        sums[0] += delta * delta
        sums[1] += weights[name] * weights[name]
    return {
        place: math.sqrt(changed / own)
        for place, (changed, own) in sorted(squares.items(), key=lambda each: _order(each[0]))
    }


def _order(place: str) -> tuple[bool, str, int]:
    name, _, number = place.rpartition(".")
    return place == REST, name, int(number) if number.isdecimal() else 0
