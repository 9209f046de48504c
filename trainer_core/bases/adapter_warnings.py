"""What of an adapter will hardly do what was meant on one base, though every tensor is loaded.

Two things are seen only beside the base's weights: magnitudes of a DoRA that are not those of the
base's rows or columns, so that they stretch every layer at once; and changes that are smaller than
the steps of the base's number format, so that they vanish where they are added to its weights.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping

from ..adapter_files.factors.effective_delta import stretch_of
from ..tensors.rounding import EIGHT_BIT, Loss
from ..types import AdapterState
from .base_weights import BaseWeights
from .merge import made_tensors, plan_jobs

MOST_LAYERS = 24
"""Layers that are looked at, in even steps over all: reading a whole base takes minutes."""

STRETCH = 1.25
"""Factor between DoRA's magnitudes and the base's from which on they are not its own.

Measured on the embedded base, 300 steps: a layer's median is 0.98 to 1.01 at learning rates up to
1e-3, and 0.92 to 1.03 at 1e-2. The wrong axis is not seen so: on square layers it is 0.96 to 1.03.
"""

KEPT = 0.5
"""Share of a change below which most of it is lost in the base's number format."""

NOISE = 2.0
"""Rounding by chance, as ComfyUI does it in 8 bits, is called noise from so many times a change."""


def base_warnings(state: AdapterState, base: BaseWeights) -> tuple[str, ...]:
    """Compare an adapter that fits a base with the base's weights: a line for each odd thing.

    The adapter's layers may be read when they are asked for; of the base the weights of at most
    `MOST_LAYERS` layers are read.
    """
    there = [name for name in state.layers if base.place(f"{name}.weight") is not None]
    count = min(MOST_LAYERS, len(there))
    names = [there[number * len(there) // count] for number in range(count)]
    plain = dataclasses.replace(state, layers={n: state.layers[n] for n in names}, extras={})
    lines = (_stretched(plain, base), _lost(plain, base))
    looked = "" if len(names) == len(state.layers) else f" (of {len(names)} layers looked at)"
    return tuple(f"{line}{looked}" for line in lines if line)


def stretch_warning(stretches: Mapping[str, float]) -> str:
    """What is to be said of how DoRA's magnitudes stretch layers; empty where all is well.

    Each layer has the median of its magnitudes over the norms of the base.
    """
    odd = {name: s for name, s in stretches.items() if not 1 / STRETCH <= s <= STRETCH}
    if not odd:
        return ""
    worst = max(odd, key=lambda name: max(odd[name], 1 / odd[name] if odd[name] > 0 else 1e30))
    return (
        f"the DoRA magnitudes of {len(odd)} layers are not those of this base, {worst} first, "
        f"where they are {odd[worst]:.3g} times as large: it was trained on another base, or on "
        "one that was read without its scales"
    )


def loss_warning(losses: Mapping[str, Loss], stored: str, *, by_chance: bool) -> str:
    """What is to be said of changes that a number format loses; empty where all is well.

    Each layer has what rounding to the base's format does to its change; numbers that are rounded
    by chance keep the mean.
    """
    if by_chance:
        noise = [loss.error for loss in losses.values()]
        if not noise or statistics.median(noise) <= NOISE:
            return ""
        return (
            f"the change is small beside the steps of the base's {stored}: ComfyUI rounds by "
            f"chance there, under noise of {statistics.median(noise):.2g} times the change"
        )
    lost = {name: loss.kept for name, loss in losses.items() if loss.kept < KEPT}
    if not lost:
        return ""
    least = min(lost, key=lost.__getitem__)
    return (
        f"the change of {len(lost)} layers vanishes for the most part in the base's {stored}, "
        f"whose steps are larger: {max(0.0, lost[least]):.0%} of it is left in {least}. Load it "
        "with bypass, which adds nothing to the weights, or train it further"
    )


def _stretched(state: AdapterState, base: BaseWeights) -> str:
    found = {name: stretch_of(state.layers[name], base.weight(name)) for name in state.layers}
    return stretch_warning({name: each for name, each in found.items() if each is not None})


def _lost(state: AdapterState, base: BaseWeights) -> str:
    jobs = plan_jobs(base, [(state, 1.0)])
    nearest: dict[str, Loss] = {}
    chance: dict[str, Loss] = {}
    formats: dict[bool, str] = {}
    for file in base.files:
        # What a packed format loses is not known: nothing is written in one.
        plain = {key: each for key, each in jobs.items() if key[1] not in file.weights.packed}
        for _, made in made_tensors(plain, file, None, "stochastic"):
            eight = made.values.dtype in EIGHT_BIT
            formats[eight] = str(made.values.dtype).removeprefix("torch.")
            (chance if eight else nearest).update(made.losses)
    lines = (
        loss_warning(nearest, formats.get(False, ""), by_chance=False),
        loss_warning(chance, formats.get(True, ""), by_chance=True),
    )
    return "; ".join(line for line in lines if line)
