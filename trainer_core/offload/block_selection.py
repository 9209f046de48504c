"""Which blocks of a denoiser are swapped, and how much of it they take off the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from torch import nn

from ..config import MemorySection
from ..errors import ConfigError


def repeated_blocks(transformer: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The blocks of a denoiser in the order of their calls.

    Args:
        names: `LayerSpec.repeated_blocks`.
    """
    return [block for name in names for block in transformer.get_submodule(name).children()]


def evenly_spread(count: int, blocks: int) -> list[int]:
    """Numbers of the blocks to swap, so that each has the same time to come.

    Args:
        count: How many, at most ``blocks``.
    """
    return [(2 * each + 1) * blocks // (2 * count) for each in range(count)]


def checkpointed(count: int | None, swapped: Sequence[int], blocks: int) -> list[int]:
    """Numbers of the blocks that compute their activations again, evenly spread.

    Args:
        count: ``memory.blocks_to_checkpoint``; None for all.
        swapped: Numbers of those that must be among them.

    Raises:
        ConfigError: When there are fewer, or more have to be.
    """
    if count is None:
        return list(range(blocks))
    if not len(swapped) <= count <= blocks:
        raise ConfigError(
            f"memory.blocks_to_checkpoint is {count}, and the base has {blocks} blocks, of which "
            f"{len(swapped)} are swapped",
            f"{len(swapped)} to {blocks}",
            "Leave memory.blocks_to_checkpoint out to checkpoint all of them.",
        )
    others = sorted(set(range(blocks)).difference(swapped))
    spread = evenly_spread(count - len(swapped), len(others))
    return sorted([*swapped, *(others[each] for each in spread)])


def fewest_swapped(count: int, free: int, device_bytes: Callable[[int], int], reserve: int) -> int:
    """To how many swapped blocks a run may go that has room on the device.

    Args:
        free: Bytes that were free at the peak of a step.
        device_bytes: Bytes of the blocks on the device, by how many are swapped.
        reserve: Bytes that stay free.

    Returns:
        The least number that fits; ``count`` where fewer do not.
    """
    most = device_bytes(count) + free - reserve
    return next((each for each in range(count) if device_bytes(each) <= most), count)


def enough_swapped(
    count: int, missing: int, device_bytes: Callable[[int], int], blocks: int
) -> int:
    """To how many swapped blocks a run has to go that shall give memory back.

    Args:
        missing: Bytes that are wanted.

    Returns:
        The least number that frees so much; where none does, the one that frees most.
    """
    wanted = device_bytes(count) - missing
    more = range(count, blocks + 1)
    return next(
        (each for each in more if device_bytes(each) <= wanted), min(more, key=device_bytes)
    )


def checkpointed_block_numbers(memory: MemorySection, blocks: int) -> list[int]:
    """Numbers of the blocks that ``memory`` lets compute their activations again.

    Raises:
        ConfigError: As `checkpointed`.
    """
    if not memory.gradient_checkpointing:
        return []
    away = evenly_spread(memory.blocks_to_swap or 0, blocks)
    return checkpointed(memory.blocks_to_checkpoint, away, blocks)


def swapped_blocks(
    transformer: nn.Module, names: Sequence[str], memory: MemorySection
) -> list[nn.Module]:
    """The blocks of a denoiser that ``memory.blocks_to_swap`` asks for; also of one on meta.

    Raises:
        ConfigError: When there are fewer.
    """
    blocks, count = repeated_blocks(transformer, names), memory.blocks_to_swap or 0
    if count > len(blocks):
        raise ConfigError(
            f"memory.blocks_to_swap is {count}, and the base has {len(blocks)} blocks",
            f"at most {len(blocks)}",
            f"Set memory.blocks_to_swap to {len(blocks)} to swap all of them.",
        )
    return [blocks[each] for each in evenly_spread(count, len(blocks))]


def bytes_away(
    blocks: Sequence[nn.Module], slots: int, bytes_of: Callable[[nn.Parameter], int]
) -> int:
    """Bytes of the swapped blocks' frozen weights that are not on the device at a time.

    Args:
        blocks: The swapped ones, in a denoiser that is frozen.
        bytes_of: What a weight takes as it is kept.
    """
    layouts = Counter(
        tuple((each.shape, bytes_of(each)) for each in block.parameters() if not each.requires_grad)
        for block in blocks
    )
    return sum(
        max(0, count - slots) * sum(size for _, size in layout) for layout, count in layouts.items()
    )
