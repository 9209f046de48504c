"""Which settings of the ``memory`` section contradict each other, or something else."""

from __future__ import annotations

from collections.abc import Iterator

from .run import RunConfig

_ON = "Set memory.gradient_checkpointing to true, or "


def memory_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """What was found, what was expected, and what to do, for each of them."""
    memory = config.memory
    if memory.blocks_to_swap and not memory.gradient_checkpointing:
        yield (
            "memory.blocks_to_swap is set and memory.gradient_checkpointing is false",
            "gradient checkpointing, which calls a block again before backward reads its weights",
            f"{_ON}memory.blocks_to_swap to 0.",
        )
    if memory.blocks_to_swap and config.adapter.exact_delta:
        yield (
            "memory.blocks_to_swap is set and adapter.exact_delta is true",
            "weights that stay on the device, beside which exact_delta puts the adapter's",
            "Set adapter.exact_delta to false, or memory.blocks_to_swap to 0.",
        )
    yield from _checkpointing(config)
    if memory.compute == "8bit" and memory.base_format in {"auto", "dense", "nf4"}:
        yield (
            f"memory.compute is 8bit, and memory.base_format is {memory.base_format}",
            "weights that are kept in 8 bits, which are multiplied as they are",
            "Set memory.base_format to int8 or fp8, or leave memory.compute out.",
        )


def _checkpointing(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    memory = config.memory
    count, swapped = memory.blocks_to_checkpoint, memory.blocks_to_swap or 0
    if count and not memory.gradient_checkpointing:
        yield (
            f"memory.blocks_to_checkpoint is {count} and memory.gradient_checkpointing is false",
            "gradient checkpointing for blocks that compute their activations again",
            f"{_ON}leave memory.blocks_to_checkpoint out.",
        )
    elif count is not None and count < swapped and memory.gradient_checkpointing:
        yield (
            f"memory.blocks_to_checkpoint is {count} and memory.blocks_to_swap is {swapped}",
            "every swapped block among the checkpointed ones, as its weights are overwritten "
            "before the backward pass",
            f"Set memory.blocks_to_checkpoint to {swapped} or more, or lower "
            "memory.blocks_to_swap.",
        )
    if memory.checkpoint_inputs == "ram" and (not memory.gradient_checkpointing or count == 0):
        yield (
            "memory.checkpoint_inputs is ram, and no block is checkpointed",
            "blocks that are checkpointed, whose inputs are kept",
            "Set memory.gradient_checkpointing to true and leave memory.blocks_to_checkpoint out, "
            "or set memory.checkpoint_inputs to auto.",
        )
