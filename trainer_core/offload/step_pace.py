"""`StepPace`: what a step will take that is made smaller, as the planner predicts it."""

from __future__ import annotations

from dataclasses import dataclass

from .possible_plans import Budget, MemoryPlan, link_speed, step_seconds

_PASSES = 3
"""What a checkpointed block computes: forward, forward again, and backward for the inputs alone."""


@dataclass(frozen=True, slots=True)
class StepPace:
    """How fast a machine is with a step.

    Attributes:
        full: Seconds that it computes where all blocks are checkpointed.
        link_bytes_per_s: What swapped blocks come with.
        micro_batches: How many a step has; each sends the swapped blocks anew.
    """

    full: float
    link_bytes_per_s: float
    micro_batches: int = 1

    @classmethod
    def of(cls, plan: MemoryPlan, budget: Budget, micro_batches: int = 1) -> StepPace:
        """What is known of a plan.

        Args:
            plan: Where the run keeps what.
            budget: What it was planned for.
            micro_batches: Of a step, all of which `MemoryPlan.full` counts.
        """
        usual = "pinned" if budget.pins else "pageable"
        master = plan.master if plan.blocks_to_swap else usual
        return cls(plan.full, link_speed(master, budget), micro_batches)

    def seconds(self, checkpointed: float, sent: int, passes: int, slots: int) -> float:
        """Predict a step.

        Args:
            checkpointed: The share of the blocks that compute their activations again.
            sent: Bytes that a forward and a backward pass send.
            passes: Parts in which a micro-batch goes through the base.
            slots: ``memory.swap_slots``; with a single one nothing is sent ahead.
        """
        compute = self.full * (_PASSES - 1 + checkpointed) / _PASSES
        transfer = self.micro_batches * passes * sent / self.link_bytes_per_s
        return step_seconds(compute, transfer, slots)
