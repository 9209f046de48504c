"""How large the adapter is beside the base's weights, block by block, and what that says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ...adapters import AttachedAdapter
from ...adapters.delta_norms import RelativeNorms
from ...device import is_out_of_memory
from ...errors import AdapterError

REST = "other layers"
"""Where layers outside of the base's repeated blocks are gathered."""

INERT = 2.0**-13
"""A sixteenth of the coarsest rounding of bf16, 2^-9 of a number: merged, nearly every weight stays
what it was (docs/metrics.md)."""

OVERBAKED = 1.0
"""A change of the middle block that is as large as its weights (docs/metrics.md)."""

OVERTURNED = 0.5
"""The same of a rotation, of which 2 is the most: 29 degrees on average."""

_SETTLED_STEPS = 100
"""So many steps behind the warm-up an adapter has moved."""


class AdapterNorms:
    """Measures an adapter's size in a run, and warns once of one that is inert or over-baked.

    Args:
        blocks: `LayerSpec.repeated_blocks`.
        every: Steps between two measurements; 0 for never.
        steps: Length of the run, behind which it is measured too.
        warn: Told what is wrong, in one line.
        warmup: Steps in which the learning rate rises.
        finds_rate: Whether the optimizer finds the learning rate itself.
    """

    def __init__(
        self,
        adapter: AttachedAdapter,
        blocks: Sequence[str],
        every: int,
        steps: int,
        warn: Callable[[str], None],
        warmup: int = 0,
        *,
        finds_rate: bool = False,
    ) -> None:
        self._norms = RelativeNorms(adapter)
        self._places = {name: block_of(name, blocks) for name in adapter.names}
        self._every, self._steps, self._warn = every, steps, warn
        # A run that is shorter than that is to be told at its end.
        self._settled = min(_SETTLED_STEPS + warmup, steps)
        self._warned: set[str] = set()
        raised = "Raise training.optimizer.learning_rate, train longer"
        self._advice = "Train longer" if finds_rate else raised
        turns = any(layer.kind.multiplies for layer in adapter.layers.values())
        self._most = OVERTURNED if turns else OVERBAKED

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
        self._judge(step, found)
        return found

    def _judge(self, step: int, found: Mapping[str, float]) -> None:
        shares = sorted(found.values())
        middle, largest = shares[len(shares) // 2], shares[-1]
        if step >= self._settled and largest < INERT:
            self._warn_once(
                "inert",
                f"After {step} steps the adapter changes no block's weights by more than "
                f"{100 * largest:.2g} %: images will hardly differ from the base's. "
                f"{self._advice}, or see whether adapter.targets names the right layers.",
            )
        if middle > self._most:
            self._warn_once(
                "over-baked",
                f"After {step} steps the adapter changes the weights of the middle block by "
                f"{100 * middle:.0f} % of what they are: images are likely to fall apart. Use an "
                "earlier checkpoint, or a strength below 1; next time lower "
                "training.optimizer.learning_rate or training.steps.",
            )

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._warn(message)


def block_of(layer: str, blocks: Sequence[str]) -> str:
    """The repeated block that a layer is in, as ``<list>.<number>``; `REST` for none.

    Args:
        blocks: Names of the lists of blocks.
    """
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
