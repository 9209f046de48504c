"""What a run's step needs in each format, for the planner."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainer_core.offload.model_bytes import base_bytes
from trainer_core.offload.possible_plans import FormatSizes, KeptFormat, StepSizes
from trainer_core.quantization.stored_format import StoredFormat
from trainer_core.training.memory.step_simulation import StepSimulation


def step_sizes(
    simulation: StepSimulation,
    formats: Mapping[str, StoredFormat],
    in_file: Collection[str] = (),
) -> StepSizes:
    """Simulate a run's step with its base dense, and in other formats.

    Args:
        formats: Beside ``dense``, by name.
        in_file: Formats in which the base's file holds the very bytes.

    Returns:
        The sizes; the format of the most bytes first, as it says most of a number.
    """
    found: dict[str, FormatSizes] = {}
    for name, stored in (("dense", None), *formats.items()):
        lists, dtype = simulation.family.layers.repeated_blocks, simulation.inputs.dtype
        weights = base_bytes(simulation.transformer, lists, dtype, stored)
        kept = KeptFormat(weights, name in in_file)
        found[name] = FormatSizes(kept, simulation.profile(stored))
    by_size = sorted(found, key=lambda name: -found[name].kept.base.total)
    return StepSizes({name: found[name] for name in by_size}, simulation.step().adapter)
