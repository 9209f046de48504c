"""`StepProfile`: what a step takes, for every choice of checkpointed blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockTerms:
    """What a step takes around one block. Bytes are those beside base and adapter.

    Attributes:
        checkpointed: Most of them while it computes, forward, again or backward, where it and all
            blocks before it are checkpointed.
        kept: The same where none of them is.
        more: Bytes that wait for its backward pass beside its inputs where it is not checkpointed.
        inputs: Bytes of its inputs that can wait in RAM.
        flops: Of computing it again.
    """

    checkpointed: int
    kept: int
    more: int
    inputs: int
    flops: int


@dataclass(frozen=True, slots=True)
class StepProfile:
    """What a step takes.

    Attributes:
        blocks: Around each block, in the order of their calls.
        outside: Most bytes while nothing of a block waits.
        between: Most bytes between forward and backward pass, with all blocks checkpointed.
        flops: Of the products, with all blocks checkpointed.
        micro_batches: How many a step has. One after the other goes through the blocks: bytes are
            those of one, FLOPs those of all.
    """

    blocks: tuple[BlockTerms, ...]
    outside: int
    between: int
    flops: int
    micro_batches: int = 1

    def activations(self, chosen: Collection[int], in_ram: bool = False) -> int:
        """Bytes beside base and adapter, at the peak.

        Args:
            in_ram: Whether their inputs wait in RAM.
        """
        peak, extra, spared, away, next_away = self.outside, 0, 0, 0, 0
        for number, block in enumerate(self.blocks):
            # The inputs of the checkpointed block before it come back while it computes again.
            gone = away - next_away
            if number in chosen:
                peak = max(peak, block.checkpointed + extra - gone)
                spared += block.more
                if in_ram:
                    away, next_away = away + block.inputs, block.inputs
            else:
                peak = max(peak, block.kept - spared - gone)
                extra += block.more
        return max(peak, self.between + extra - away)

    def inputs(self, chosen: Collection[int]) -> int:
        """Bytes of RAM that the checkpointed blocks' inputs take."""
        return sum(block.inputs for number, block in enumerate(self.blocks) if number in chosen)

    def computed(self, chosen: Collection[int]) -> int:
        """FLOPs of the products."""
        kept = (block.flops for number, block in enumerate(self.blocks) if number not in chosen)
        return self.flops - sum(kept)
