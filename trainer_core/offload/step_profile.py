"""`StepProfile`: what a step takes, for every choice of checkpointed blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """What a device computes.

    Attributes:
        flops: Of the products; a multiplication with its addition are two.
        attention: FLOPs of attention.
        moved: Bytes that all other kernels read and write.
        launches: Kernels.
        converted: Bytes of kernels that mix number formats.
    """

    flops: int = 0
    attention: int = 0
    moved: int = 0
    launches: int = 0
    converted: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Work) -> Work:
        return self + other * -1

    def __mul__(self, times: int) -> Work:
        return Work(*(each * times for each in astuple(self)))


@dataclass(frozen=True, slots=True)
class BlockTerms:
    """What a step takes around one block. Bytes are those beside base and adapter.

    Attributes:
        checkpointed: Most of them while it computes, forward, again or backward, where it and all
            blocks before it are checkpointed.
        kept: The same where none of them is.
        more: Bytes that wait for its backward pass beside its inputs where it is not checkpointed.
        inputs: Bytes of its inputs that can wait in RAM.
        work: Of computing it again.
    """

    checkpointed: int
    kept: int
    more: int
    inputs: int
    work: Work


@dataclass(frozen=True, slots=True)
class StepProfile:
    """What a step takes.

    Attributes:
        blocks: Around each block, in the order of their calls.
        outside: Most bytes while nothing of a block waits.
        between: Most bytes between forward and backward pass, with all blocks checkpointed.
        work: Of a step with all blocks checkpointed.
        micro_batches: How many a step has. One after the other goes through the blocks: bytes that
            are held are those of one, work that of all.
    """

    blocks: tuple[BlockTerms, ...]
    outside: int
    between: int
    work: Work
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

    def computed(self, chosen: Collection[int]) -> Work:
        """What is computed with these blocks checkpointed."""
        kept = (block.work for number, block in enumerate(self.blocks) if number not in chosen)
        return self.work - sum(kept, Work())
